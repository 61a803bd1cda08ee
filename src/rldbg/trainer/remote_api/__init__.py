"""The `remote_api` mode: the policy lives in a training service that is reached over HTTP."""

from rldbg.trainer.remote_api.client import RemoteSampler, ServiceConnection, ServiceError, TrainingClient
from rldbg.trainer.remote_api.datums import ClientDatum, datums_of
from rldbg.trainer.remote_api.learner import RemoteLearner, check_remote
