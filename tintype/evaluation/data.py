"""Whether a protocol fits the data of a run: found before the first step of training."""

from __future__ import annotations

from tintype.errors import UserError
from tintype.evaluation.prompts import CAPTIONS
from tintype.evaluation.protocol import Protocol
from tintype.seams import ImageSource
from tintype.settings import DataPart
from tintype.vision.encoders import SceneEncoderSettings


def check_data(data: DataPart, source: ImageSource, protocol: Protocol) -> None:
    """Refuses encoders that cannot read the pictures, captions that they do not have, and more pictures than there are.

    `source` is the evaluation split.
    """
    if data.of_scenes:
        return  # any number of scenes can be drawn, and each has all captions
    for encoder in protocol.encoders:
        if isinstance(encoder, SceneEncoderSettings):
            raise UserError(
                "encoders: 'scenes' has learnt the embedded scenes and nothing else; its distances between other "
                "pictures mean nothing. Take inception (FID) or vgg16, which need no hub, or clip or dinov2: "
                "encoders=[inception]"
            )
    for name in dict.fromkeys(["long", *(sampling.prompts for sampling in protocol.conditions)]):
        if name in CAPTIONS and name not in source.columns:
            raise UserError(
                f"the evaluation needs captions called '{name}', and the store has "
                f"{', '.join(sorted(source.columns))}; import it with --caption {name}=COLUMN, or take the condition "
                "out of `also`"
            )
    needed = {
        "reference_count": protocol.reference_count,
        "validation_count": protocol.validation_count,
        "count": protocol.count,
        **{f"also ({one.name}): count": one.count or 0 for one in protocol.conditions[1:]},
    }
    if more := [f"{key}={count}" for key, count in needed.items() if count > len(source)]:
        raise UserError(
            f"the evaluation split of the store has {len(source):,} pictures, fewer than {', '.join(more)}; lower "
            "that, leave fewer out (data.where, data.skip), or import the store with a larger --eval-share"
        )
