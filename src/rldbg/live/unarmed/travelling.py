"""The code that inspects processes, packed so that any Python 3.11 or later can run it without rldbg."""

import base64
import io
import zipfile
from pathlib import Path

import rldbg.agent.waits

PACKAGE = "rldbg_waits"
_MAIN = f"from {PACKAGE}.outside import main\nmain()\n"
# The answer comes in short lines that begin so: logins print lines of their own, and srun mixes those of nodes.
MARK = "rldbg-answer:"
_LINE = 1000


def packed() -> bytes:
    """A zip file that Python runs as a program."""
    folder = Path(rldbg.agent.waits.__file__).parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*.py")):
            archive.writestr(f"{PACKAGE}/{file.relative_to(folder).as_posix()}", file.read_text(encoding="utf-8"))
        archive.writestr("__main__.py", _MAIN)
    return buffer.getvalue()


def program() -> str:
    """Text that unpacks itself into a temporary file and runs; its first argument is the request."""
    data = base64.b85encode(packed()).decode()
    return (
        "import base64, os, subprocess, sys, tempfile\n"
        f"data = base64.b85decode({data!r})\n"
        "handle, path = tempfile.mkstemp(suffix='.pyz')\n"
        "os.write(handle, data); os.close(handle)\n"
        "try:\n"
        "    done = subprocess.run([sys.executable, path, *sys.argv[1:]], stdout=subprocess.PIPE, text=True)\n"
        "finally:\n"
        "    os.unlink(path)\n"
        f"for at in range(0, len(done.stdout), {_LINE}):\n"
        f"    print({MARK!r} + done.stdout[at:at + {_LINE}].replace('\\n', ' '))\n"
        "sys.exit(done.returncode)\n"
    )
