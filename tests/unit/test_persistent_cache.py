"""The persistent cache of compiled programs."""

from __future__ import annotations

import jax
import jaxlib.utils
import pytest

import tightrope as tr
from tightrope.problems.persistent_cache import use_default_cache

SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@pytest.fixture(autouse=True)
def settings_of_jax():
    """JAX's own settings again, after the test."""
    before = {name: jax.config.values[name] for name in SETTINGS}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    jax.experimental.compilation_cache.compilation_cache.reset_cache()


def test_programs_are_kept_in_the_folder(tmp_path):
    tr.cache(tmp_path / "programs")
    jax.jit(lambda x: x * 1.2345)(1.0)
    assert list((tmp_path / "programs").iterdir())


def test_messages_about_programs_that_are_loaded_are_turned_off(tmp_path, monkeypatch):
    levels = []
    monkeypatch.setattr(jaxlib.utils, "absl_set_min_log_level", levels.append)
    tr.cache(tmp_path)
    assert levels == [3]


def test_a_file_and_a_number_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cache: folder must be a folder, got the file"):
        tr.cache(tmp_path / "file")
    with pytest.raises(TypeError, match="cache: folder"):
        tr.cache(3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("given", "used"), [("other", True), ("", False)])
def test_an_environment_variable_names_the_folder_of_the_command_line_or_none(monkeypatch, tmp_path, given, used):
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("TIGHTROPE_CACHE", given and str(tmp_path / given))
    use_default_cache()
    assert jax.config.values["jax_compilation_cache_dir"] == (str(tmp_path / given) if used else None)


def test_a_cache_that_is_set_already_stays(monkeypatch, tmp_path):
    tr.cache(tmp_path / "own")
    monkeypatch.setenv("TIGHTROPE_CACHE", str(tmp_path / "other"))
    use_default_cache()
    assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "own")
