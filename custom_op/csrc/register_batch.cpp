// Registers the operator that decodes batches.
#include <torch/csrc/stable/library.h>

#include <algorithm>
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
  std::vector<Bytes> side_indexes;  // one for every image, or none
  const int64_t* boxes = nullptr;
  const bool* flips = nullptr;                     // null: mirror no image
  std::vector<std::vector<Operation>> operations;  // of every image, or none
  char* out = nullptr;
  Slot strides;  // of every slot
  int64_t slot_bytes = 0;
};

void process(const Batch& batch, const BatchOptions& options, int64_t i, std::string& error) {
  thread_local ImageWorker worker;
  Slot slot = batch.strides;
  slot.data = batch.out + i * batch.slot_bytes;
  const int64_t* box = batch.boxes + 4 * i;
  const auto image = static_cast<size_t>(i);
  const Bytes side_index = batch.side_indexes.empty() ? Bytes{} : batch.side_indexes[image];
  static const std::vector<Operation> kNone;
  try {
    worker.process(batch.images[image], side_index, {box[0], box[1], box[2], box[3]},
                   batch.flips != nullptr && batch.flips[i],
                   batch.operations.empty() ? kNone : batch.operations[image], options, slot);
  } catch (const std::exception& failure) {
    error = failure.what();
    if (error.empty()) error = "unknown error";
  }
}

// Runs the batch. Returns one message per image, empty if the image was decoded.
std::vector<std::string> process_all(const Batch& batch, const BatchOptions& options,
                                     int64_t num_threads) {
  std::vector<std::string> errors(batch.images.size());
  for_each_index(static_cast<int64_t>(errors.size()), num_threads,
                 [&](int64_t i) { process(batch, options, i, errors[static_cast<size_t>(i)]); });
  return errors;
}

void clear(const Batch& batch, const BatchOptions& options, int64_t i) {
  // Both allowed layouts fill a slot without gaps.
  const int64_t values = 3 * options.size * options.size;
  std::memset(batch.out + i * batch.slot_bytes, 0,
              static_cast<size_t>(values * element_bytes(options.element)));
}

void check_numbers(int64_t size, int64_t num_threads) {
  if (size < 1 || size > 16384) refuse("size must be 1 to 16384; got " + std::to_string(size));
  if (num_threads < 0) refuse("num_threads must be 0 or more; got " + std::to_string(num_threads));
}

const int64_t* box_values(const Tensor& boxes, int64_t count) {
  check_cpu(boxes, "boxes", ScalarType::Long, "int64", 2);
  if (boxes.size(0) != count || boxes.size(1) != 4) {
    refuse("boxes must have the shape (" + std::to_string(count) +
           ", 4): top, left, height, width");
  }
  return static_cast<const int64_t*>(boxes.const_data_ptr());
}

const bool* flip_values(const std::optional<Tensor>& flip, int64_t count) {
  if (!flip) return nullptr;
  check_cpu(*flip, "flip", ScalarType::Bool, "bool", 1);
  if (flip->numel() != count) refuse("flip must hold one bool for every image");
  return static_cast<const bool*>(flip->const_data_ptr());
}

// Checks the whole table, so that no image is decoded for a batch that is refused.
std::vector<std::vector<Operation>> operations_of(const std::optional<Tensor>& augment,
                                                  int64_t count, int64_t size) {
  if (!augment) return {};
  check_cpu(*augment, "augment", ScalarType::Float, "float32", 3);
  if (augment->size(0) != count || augment->size(2) != kOperationColumns) {
    refuse("augment must have the shape (" + std::to_string(count) + ", K, " +
           std::to_string(kOperationColumns) + "): K operations for every image");
  }
  const int64_t each = augment->size(1);
  const auto* row = static_cast<const float*>(augment->const_data_ptr());
  std::vector<std::vector<Operation>> operations;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t k = 0; k < each; ++k) {
      const std::string problem = operation_problem(row + k * kOperationColumns, size);
      if (problem.empty()) continue;
      refuse("augment: operation " + std::to_string(k) + " of image " + std::to_string(i) + ": " +
             problem);
    }
    operations.push_back(read_operations(row, each));
    row += each * kOperationColumns;
  }
  return operations;
}

void set_affine(const Tensor& affine, BatchOptions& options) {
  check_cpu(affine, "affine", ScalarType::Float, "float32", 2);
  if (affine.numel() != 6) refuse("affine must hold a scale and a bias for each of 3 channels");
  const auto* factors = static_cast<const float*>(affine.const_data_ptr());
  std::copy_n(factors, 3, options.scale.begin());
  std::copy_n(factors + 3, 3, options.bias.begin());
}

Tensor decode_crop_resize_batch(std::vector<Tensor> jpegs, std::optional<Tensor> offsets,
                                std::optional<Tensor> lengths, Tensor boxes, int64_t size,
                                std::vector<Tensor> indexes, std::optional<Tensor> index_offsets,
                                std::optional<Tensor> index_lengths, std::optional<Tensor> flip,
                                Tensor affine, bool mask_errors, bool apply_orientation,
                                bool scaled_decode, bool ycbcr, int64_t max_pixels,
                                int64_t num_threads, Tensor out, std::optional<Tensor> augment,
                                bool fast_color) {
  Batch batch;
  batch.images = jpegs_bytes(jpegs, offsets, lengths);
  const auto count = static_cast<int64_t>(batch.images.size());
  if (!indexes.empty()) {
    batch.side_indexes = jpegs_bytes(indexes, index_offsets, index_lengths);
    if (batch.side_indexes.size() != batch.images.size()) {
      refuse("indexes must hold one index for every image, empty or not");
    }
  }
  batch.boxes = box_values(boxes, count);
  check_numbers(size, num_threads);
  check_out(out, count, size);
  BatchOptions options;
  options.size = size;
  options.color = ycbcr ? Color::kYcbcr : Color::kRgb;
  options.element = element_of(out);
  set_affine(affine, options);
  options.apply_orientation = apply_orientation;
  options.scaled_decode = scaled_decode;
  options.fast_color = fast_color;
  options.max_pixels = max_pixels;
  batch.flips = flip_values(flip, count);
  batch.operations = operations_of(augment, count, size);
  batch.out = static_cast<char*>(out.mutable_data_ptr());
  batch.strides.channel_stride = out.stride(1);
  batch.strides.row_stride = out.stride(2);
  batch.strides.column_stride = out.stride(3);
  batch.slot_bytes = out.stride(0) * element_bytes(options.element);

  const std::vector<std::string> errors = process_all(batch, options, num_threads);
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
      "int size, *, Tensor[] indexes, Tensor? index_offsets, Tensor? index_lengths, Tensor? flip, "
      "Tensor affine, bool mask_errors, bool apply_orientation, bool scaled_decode, bool ycbcr, "
      "int max_pixels, int num_threads, Tensor(a!) out, Tensor? augment=None, "
      "bool fast_color=False) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(custom_op, CPU, m) {
  m.impl("decode_crop_resize_batch", TORCH_BOX(&custom_op::decode_crop_resize_batch));
}
