"""What is installed: kerasrl_gpu, and the folder callbacks/ as kerasrl_gpu.callbacks."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent

# Ranges, never pins: from the oldest release whose interface is used to the next one whose number
# allows a break. Tested together, on Python 3.11: tensorflow 2.21.0, keras 3.15.1,
# keras-rl2 1.0.5, gymnasium 1.4.0, numpy 2.4.6, psutil 7.2.2, nvidia-ml-py 13.615.71,
# safetensors 0.8.0, rich 15.0.0, jax 0.10.2, ale-py 0.12.1, mujoco 4.0.0, matplotlib 3.11.2.
REQUIRED = [
    "tensorflow>=2.19,<3",
    "keras>=3.10,<4",
    "keras-rl2>=1.0.5,<2",
    "gymnasium>=1.0,<2",
    "numpy>=2.0,<3",
    "psutil>=5.9.5,<8",
    "nvidia-ml-py>=12.535,<14",
    "h5py>=3.11,<4",
    "safetensors>=0.4.3,<1",
    "rich>=13,<16",
]
JAX = "0.5,<0.11"  # below 1.0 every second number may break
ALE = ["ale-py>=0.10.1,<0.13", "pillow>=10"]
MUJOCO = ["gymnasium[mujoco]", "mujoco>=3.2,<5"]
PLOTS = "matplotlib>=3.9,<4"

EXTRAS = {
    "jax": [f"jax>={JAX}"],
    "jax-cuda": [f"jax[cuda12]>={JAX}"],
    "cuda": ["tensorflow[and-cuda]"],  # CUDA 12 and cuDNN 9, as jax-cuda brings them
    "atari": ALE,
    "mujoco": MUJOCO,
    "plots": [PLOTS],
    "test": [
        "pytest>=8.3,<10",
        "hypothesis>=6.100,<7",
        "ruff>=0.17,<0.18",  # its formatting changes with every second number
        "pygame>=2.6,<3",
        f"jax>={JAX}",
        *ALE,
        *MUJOCO,
        "opencv-python-headless>=4.8",  # Gymnasium's AtariPreprocessing
        PLOTS,
    ],
}


def version() -> str:
    """`__version__` of the package, read as text: importing it would need it to be installed."""
    text = (HERE / "kerasrl_gpu" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)[1]


def long_description() -> str:
    """The README, or nothing where a source tree was copied without it."""
    readme = HERE / "README.md"
    return readme.read_text(encoding="utf-8") if readme.exists() else ""


setup(
    name="kerasrl-gpu",
    version=version(),
    description="Keras-RL on Keras 3, TensorFlow and JAX, with replay memory on the device",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    author="the kerasrl-gpu authors",
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    # The folder stands outside the package, so the finder cannot see it: it is named here.
    package_dir={"kerasrl_gpu.callbacks": "callbacks"},
    packages=[*find_packages(include=["kerasrl_gpu", "kerasrl_gpu.*"]), "kerasrl_gpu.callbacks"],
    install_requires=REQUIRED,
    entry_points={"console_scripts": ["kerasrl-gpu = kerasrl_gpu.cli:main"]},
    extras_require=EXTRAS,
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
