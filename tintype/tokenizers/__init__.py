"""A tokenizer maps pixels to the space of the denoiser, behind one protocol (`seams.Tokenizer`)."""

from typing import Annotated

from pydantic import BeforeValidator

from tintype.settings import OneOf, OpenKinds, kind_alone
from tintype.tokenizers.dc_ae import DcAeSettings
from tintype.tokenizers.flux1 import E2eFluxSettings, Flux1Settings
from tintype.tokenizers.flux2 import Flux2Settings
from tintype.tokenizers.part import TokenizerPart
from tintype.tokenizers.pixels import PixelsSettings
from tintype.tokenizers.rae import RaeSettings
from tintype.tokenizers.small_vae import SmallVaeSettings
from tintype.tokenizers.taef1 import Taef1Settings
from tintype.tokenizers.taef2 import Taef2Settings

TOKENIZERS: OpenKinds[TokenizerPart] = OpenKinds(
    "tokenizers",
    PixelsSettings,
    Flux1Settings,
    E2eFluxSettings,
    Flux2Settings,
    DcAeSettings,
    Taef1Settings,
    Taef2Settings,
    SmallVaeSettings,
    RaeSettings,
)

TokenizerChoice = Annotated[TokenizerPart, OneOf(TOKENIZERS), BeforeValidator(kind_alone)]
"""Any tokenizer in the notation of a plan file, such as `{kind: flux2, weights: FOLDER}`, or only a kind."""
