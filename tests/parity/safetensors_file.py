# Writes safetensors files: an 8-byte header length, a JSON header, the elements.
# SPDX-License-Identifier: Apache-2.0
import json
import struct

import numpy

TYPES = {"float64": "F64", "float32": "F32", "int64": "I64", "int32": "I32", "uint8": "U8", "bool": "BOOL"}


def write(path, tensors, metadata):
    """Writes {name: array} and {key: text}. Wide types come first, so that all tensors are aligned."""
    arrays = {name: numpy.ascontiguousarray(numpy.asarray(value)) for name, value in tensors.items()}
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    header, offset = {"__metadata__": metadata}, 0
    for name in names:
        array = arrays[name]
        header[name] = {"dtype": TYPES[array.dtype.name], "shape": list(numpy.asarray(tensors[name]).shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            file.write(arrays[name].tobytes())
