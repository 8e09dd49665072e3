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

inline std::vector<Bytes> jpegs_bytes(const std::vector<Tensor>& jpegs) {
  std::vector<Bytes> images;
  for (const Tensor& jpeg : jpegs) images.push_back(jpeg_bytes(jpeg, "every JPEG"));
  return images;
}

}  // namespace custom_op
