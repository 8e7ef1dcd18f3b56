"""The state of Gymnasium's MuJoCo environments."""

from __future__ import annotations

import hashlib

import mujoco
import numpy as np

from kerasrl_gpu.attributes import kinds
from kerasrl_gpu.errors import SnapshotError

_STATE = mujoco.mjtState.mjSTATE_INTEGRATION

# After a step these are those of its last substep, one behind the state. Tasks read them before
# they step: Ant's and Humanoid's velocities are differences of xpos and xipos.
_LAGGING = (
    *("xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis"),
    *("geom_xpos", "geom_xmat", "site_xpos", "site_xmat", "cam_xpos", "cam_xmat"),
    *("light_xpos", "light_xdir", "subtree_com", "subtree_linvel", "subtree_angmom"),
    *("cinert", "cvel", "cacc", "cfrc_int", "cfrc_ext", "sensordata", "energy"),
    *("qacc", "qfrc_actuator", "qfrc_bias", "qfrc_passive", "qfrc_constraint"),
    *("actuator_force", "actuator_length", "actuator_velocity", "ten_length", "ten_velocity"),
)


def skip(env) -> frozenset:
    """Names of what is saved here, and of views of it."""
    views = {name for name, value in kinds.attributes_of(env).items() if _is_view(value, env.data)}
    return frozenset(
        {"model", "data", "mujoco_renderer", "render_mode", "_ezpickle_args", "_ezpickle_kwargs"}
        | views
    )


def take(env) -> dict:
    """The physics' state, what lags behind it, and a digest of the model."""
    state = np.empty(mujoco.mj_stateSize(env.model, _STATE))
    mujoco.mj_getState(env.model, env.data, state, _STATE)
    return {
        "model_sha256": _digest(env.model),
        "state": state,
        "lagging": {name: getattr(env.data, name).copy() for name in _LAGGING},
    }


def put(env, taken: dict) -> None:
    """Set the state, and then what lagged behind it.

    Raises:
        SnapshotError: the model is another, or was changed after it was loaded.
    """
    if taken["model_sha256"] != _digest(env.model):
        raise SnapshotError(
            f"the MuJoCo model of {type(env).__name__} differs from the one that was saved: "
            "another file, another release of Gymnasium or MuJoCo, or values changed after "
            "loading. Make it as it was, and restore then."
        )
    mujoco.mj_setState(env.model, env.data, taken["state"], _STATE)
    mujoco.mj_forward(env.model, env.data)  # contacts and the like, which have no fixed size
    for name, values in taken["lagging"].items():
        getattr(env.data, name)[:] = values
    # Once more: before MuJoCo 4, mj_forward moves the solver's warm start.
    mujoco.mj_setState(env.model, env.data, taken["state"], _STATE)


def _digest(model) -> str:
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return hashlib.sha256(buffer).hexdigest()


def _is_view(value, data) -> bool:
    return isinstance(value, np.ndarray) and any(
        np.may_share_memory(value, getattr(data, name)) for name in ("qpos", "qvel", *_LAGGING)
    )
