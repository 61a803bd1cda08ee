"""Records of miles, whose functions have the arguments of slime's."""

from rldbg.frameworks.slime.recording import SlimeRecording

RECORDING = SlimeRecording
