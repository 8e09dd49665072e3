// Checks of the tensors that the operators receive.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <vector>

#include "types.h"

namespace custom_op {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

[[noreturn]] inline void refuse(const std::string& message) { throw std::runtime_error(message); }

inline void check_cpu(const Tensor& tensor, const char* name, ScalarType type,
                      const char* type_name, int64_t dimensions) {
  const std::string start = std::string(name) + " must be a ";
  if (!tensor.is_cpu()) refuse(start + "CPU tensor; move it with .cpu()");
  if (tensor.scalar_type() != type) refuse(start + type_name + " tensor; got another dtype");
  if (tensor.dim() != dimensions) {
    refuse(start + std::to_string(dimensions) + "-D tensor; got " + std::to_string(tensor.dim()) +
           " dimensions");
  }
  if (!tensor.is_contiguous()) refuse(start + "contiguous tensor; use .contiguous()");
}

inline Bytes jpeg_bytes(const Tensor& data, const char* name = "data") {
  check_cpu(data, name, ScalarType::Byte, "uint8", 1);
  return {static_cast<const uint8_t*>(data.const_data_ptr()), static_cast<size_t>(data.numel())};
}

// The images of a batch: one tensor each, or, with spans, parts of one buffer. Spans are int64
// (images, 2): the start and the length of each.
inline std::vector<Bytes> jpegs_bytes(const std::vector<Tensor>& jpegs,
                                      const std::optional<Tensor>& spans) {
  std::vector<Bytes> images;
  if (!spans) {
    for (const Tensor& jpeg : jpegs) images.push_back(jpeg_bytes(jpeg, "every JPEG"));
    return images;
  }
  const Bytes buffer = jpeg_bytes(jpegs.at(0), "buffer");
  check_cpu(*spans, "spans", ScalarType::Long, "int64", 2);
  if (spans->size(1) != 2) refuse("spans must hold the start and the length of every image");
  const auto* span = static_cast<const int64_t*>(spans->const_data_ptr());
  const auto size = static_cast<int64_t>(buffer.size);
  for (int64_t i = 0; i < spans->size(0); ++i, span += 2) {
    const int64_t start = span[0], length = span[1];
    if (start < 0 || length < 0 || start > size || length > size - start) {
      refuse("image " + std::to_string(i) + ": start=" + std::to_string(start) +
             ", length=" + std::to_string(length) + " is not inside the buffer of " +
             std::to_string(size) + " bytes");
    }
    images.push_back({buffer.data + start, static_cast<size_t>(length)});
  }
  return images;
}

}  // namespace custom_op
