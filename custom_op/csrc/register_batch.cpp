// The batch operator as torch sees it.
#include <torch/csrc/stable/library.h>

#include <cstring>

#include "batch.h"
#include "pool.h"
#include "tensors.h"

namespace custom_op {
namespace {

Element element_of(const Tensor& out) {
  switch (out.scalar_type()) {
    case ScalarType::Byte:
      return Element::kUint8;
    case ScalarType::Float:
      return Element::kFloat32;
    case ScalarType::Half:
      return Element::kFloat16;
    case ScalarType::BFloat16:
      return Element::kBfloat16;
    default:
      refuse("out must be uint8, float32, float16 or bfloat16; got another dtype");
  }
}

int64_t element_bytes(Element element) {
  return element == Element::kUint8 ? 1 : element == Element::kFloat32 ? 4 : 2;
}

void check_out(const Tensor& out, int64_t count, int64_t size) {
  if (!out.is_cpu()) refuse("out must be a CPU tensor, pinned or not");
  if (out.dim() != 4 || out.size(0) != count || out.size(1) != 3 || out.size(2) != size ||
      out.size(3) != size) {
    refuse("out must have the shape (" + std::to_string(count) + ", 3, " + std::to_string(size) +
           ", " + std::to_string(size) + ")");
  }
  const bool planar = out.stride(3) == 1 && out.stride(2) == size && out.stride(1) == size * size;
  const bool by_pixel = out.stride(1) == 1 && out.stride(3) == 3 && out.stride(2) == 3 * size;
  if ((!planar && !by_pixel && size != 1) || (count > 1 && out.stride(0) < 3 * size * size)) {
    refuse("out must be contiguous or channels_last");
  }
}

struct Batch {
  std::vector<Bytes> images;
  const int64_t* boxes;
  const bool* flips;  // or null
  char* out;
  Slot strides;
  int64_t slot_bytes;
};

void process(const Batch& batch, const BatchOptions& options, int64_t i, std::string& error) {
  thread_local ImageWorker worker;
  Slot slot = batch.strides;
  slot.data = batch.out + i * batch.slot_bytes;
  const int64_t* box = batch.boxes + 4 * i;
  try {
    worker.process(batch.images[static_cast<size_t>(i)], {box[0], box[1], box[2], box[3]},
                   batch.flips != nullptr && batch.flips[i], options, slot);
  } catch (const std::exception& failure) {
    error = failure.what();
    if (error.empty()) error = "unknown error";
  }
}

void clear(const Batch& batch, const BatchOptions& options, int64_t i) {
  // Both layouts that are allowed fill a slot without gaps.
  const int64_t values = 3 * options.size * options.size;
  std::memset(batch.out + i * batch.slot_bytes, 0,
              static_cast<size_t>(values * element_bytes(options.element)));
}

Tensor decode_crop_resize_batch(std::vector<Tensor> jpegs, std::optional<Tensor> offsets,
                                std::optional<Tensor> lengths, Tensor boxes, int64_t size,
                                std::optional<Tensor> flip, Tensor affine, bool mask_errors,
                                bool apply_orientation, bool scaled_decode, bool ycbcr,
                                int64_t max_pixels, int64_t num_threads, Tensor out) {
  Batch batch{jpegs_bytes(jpegs, offsets, lengths), nullptr, nullptr, nullptr, {}, 0};
  const auto count = static_cast<int64_t>(batch.images.size());
  check_cpu(boxes, "boxes", ScalarType::Long, "int64", 2);
  if (boxes.size(0) != count || boxes.size(1) != 4) {
    refuse("boxes must have the shape (" + std::to_string(count) +
           ", 4): top, left, height, width");
  }
  if (size < 1 || size > 16384) refuse("size must be 1 ... 16384; got " + std::to_string(size));
  if (num_threads < 0) refuse("num_threads must be 0 or more; got " + std::to_string(num_threads));
  check_out(out, count, size);
  check_cpu(affine, "affine", ScalarType::Float, "float32", 2);
  if (affine.numel() != 6) refuse("affine must hold a scale and a bias for each of 3 channels");
  const auto* factors = static_cast<const float*>(affine.const_data_ptr());
  if (flip) {
    check_cpu(*flip, "flip", ScalarType::Bool, "bool", 1);
    if (flip->numel() != count) refuse("flip must hold one bool for every image");
    batch.flips = static_cast<const bool*>(flip->const_data_ptr());
  }
  const Element element = element_of(out);
  const BatchOptions options{size,
                             {ycbcr ? Color::kYcbcr : Color::kRgb, 1},
                             element,
                             {factors[0], factors[1], factors[2]},
                             {factors[3], factors[4], factors[5]},
                             apply_orientation,
                             scaled_decode,
                             max_pixels};
  batch.boxes = static_cast<const int64_t*>(boxes.const_data_ptr());
  batch.out = static_cast<char*>(out.mutable_data_ptr());
  batch.strides = {nullptr, out.stride(1), out.stride(2), out.stride(3)};
  batch.slot_bytes = out.stride(0) * element_bytes(element);
  std::vector<std::string> errors(static_cast<size_t>(count));
  for_each_index(count, num_threads,
                 [&](int64_t i) { process(batch, options, i, errors[static_cast<size_t>(i)]); });
  const std::array<int64_t, 1> shape{count};
  Tensor failed = torch::stable::empty(shape, ScalarType::Bool);
  auto* mask = static_cast<bool*>(failed.mutable_data_ptr());
  for (int64_t i = 0; i < count; ++i) {
    const std::string& error = errors[static_cast<size_t>(i)];
    mask[i] = !error.empty();
    if (error.empty()) continue;
    if (!mask_errors) refuse("image " + std::to_string(i) + " of the batch: " + error);
    clear(batch, options, i);
  }
  return failed;
}

}  // namespace
}  // namespace custom_op

STABLE_TORCH_LIBRARY_FRAGMENT(custom_op, m) {
  m.def(
      "decode_crop_resize_batch(Tensor[] jpegs, Tensor? offsets, Tensor? lengths, Tensor boxes, "
      "int size, *, Tensor? flip, Tensor affine, bool mask_errors, bool apply_orientation, "
      "bool scaled_decode, bool ycbcr, int max_pixels, int num_threads, Tensor(a!) out) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(custom_op, CPU, m) {
  m.impl("decode_crop_resize_batch", TORCH_BOX(&custom_op::decode_crop_resize_batch));
}
