# MkDocs hook that inserts the code of declarations into the pages, before MkDocs indexes the pages.
# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import re

BLOCK = re.compile(r'(<div class="highlight declaration">)(\d+)(?=</div>)')
blocks = []


def on_config(config):
    file = pathlib.Path(config["config_file_path"]).parent / "blocks.json"  # written by build.py
    blocks[:] = json.loads(file.read_text(encoding="utf-8"))


def on_page_content(html, **_):
    return BLOCK.sub(lambda match: match[1] + blocks[int(match[2])], html)
