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

// The images of a batch: one tensor each, or, with offsets and lengths, ranges of one buffer.
inline std::vector<Bytes> jpegs_bytes(const std::vector<Tensor>& jpegs,
                                      const std::optional<Tensor>& offsets,
                                      const std::optional<Tensor>& lengths) {
  std::vector<Bytes> images;
  if (!offsets) {
    for (const Tensor& jpeg : jpegs) images.push_back(jpeg_bytes(jpeg, "every JPEG"));
    return images;
  }
  const Bytes buffer = jpeg_bytes(jpegs.at(0), "buffer");
  check_cpu(*offsets, "offsets", ScalarType::Long, "int64", 1);
  check_cpu(*lengths, "lengths", ScalarType::Long, "int64", 1);
  if (offsets->numel() != lengths->numel()) refuse("offsets and lengths must be equally long");
  const auto* offset = static_cast<const int64_t*>(offsets->const_data_ptr());
  const auto* length = static_cast<const int64_t*>(lengths->const_data_ptr());
  const auto size = static_cast<int64_t>(buffer.size);
  for (int64_t i = 0; i < offsets->numel(); ++i) {
    if (offset[i] < 0 || length[i] < 0 || offset[i] > size || length[i] > size - offset[i]) {
      refuse("image " + std::to_string(i) + ": offset=" + std::to_string(offset[i]) +
             ", length=" + std::to_string(length[i]) + " is not inside the buffer of " +
             std::to_string(size) + " bytes");
    }
    images.push_back({buffer.data + offset[i], static_cast<size_t>(length[i])});
  }
  return images;
}

}  // namespace custom_op
