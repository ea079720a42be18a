from .completions import (
    AnswerWriter as AnswerWriter,
    ChatRequest as ChatRequest,
    Piece as Piece,
    RequestError as RequestError,
    TextRequest as TextRequest,
    end_tokens as end_tokens,
    render_prompt as render_prompt,
)
from .model_app import ModelApp as ModelApp
from .processes.engines import EngineServer as EngineServer
from .processes.model_process import serve_child as serve_child
from .provider_errors import RemoteRefusalError as RemoteRefusalError
from .sampling.app import ChatApp as ChatApp
from .sampling.batcher import Weights as Weights
from .sampling.sequences import (
    Completion as Completion,
    Constraint as Constraint,
    Sampler as Sampler,
    SamplingRequest as SamplingRequest,
)
from .versions import (
    MODEL_NAME as MODEL_NAME,
    WHOLE_SOFTMAX as WHOLE_SOFTMAX,
    Served as Served,
    ServedModel as ServedModel,
    Version as Version,
    model_served as model_served,
)
