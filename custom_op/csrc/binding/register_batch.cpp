// Registers the operator that decodes batches.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <tuple>

#include "binding/batch_tensors.h"
#include "pool.h"

namespace custom_op {
namespace {

// Cuts all views of one image. Returns why that is not possible, else nothing.
std::string process(Batch& batch, int64_t image) {
  thread_local ImageWorker worker;
  static const std::vector<Operation> kNone;
  const auto i = static_cast<size_t>(image);
  int64_t view = -1;  // none: opening the file failed
  try {
    worker.open(batch.images[i], batch.side_indexes.empty() ? Bytes{} : batch.side_indexes[i],
                batch.max_pixels, batch.index_share);
    for (view = 0; view < batch.each; ++view) {
      const int64_t at = image * batch.each + view;
      const int64_t* box = batch.boxes + 4 * at;
      worker.cut({box[0], box[1], box[2], box[3]}, batch.flips != nullptr && batch.flips[at],
                 batch.operations.empty() ? kNone : batch.operations[static_cast<size_t>(at)],
                 batch.options, batch.slot(image, view));
    }
    batch.stale[i] = worker.has_stale_index();
    if (batch.index_share > 0) batch.new_indexes[i] = worker.finish_index();
  } catch (const std::exception& failure) {
    const std::string reason = failure.what();
    const bool of_view = batch.several && view >= 0;
    return (of_view ? "view " + std::to_string(view) + ": " : "") +
           (reason.empty() ? "unknown error" : reason);
  }
  return {};
}

// Runs the batch. Returns one message per image, empty if all its views were decoded.
std::vector<std::string> process_all(Batch& batch, int64_t num_threads) {
  std::vector<std::string> errors(batch.images.size());
  for_each_index(batch.count(), num_threads,
                 [&](int64_t i) { errors[static_cast<size_t>(i)] = process(batch, i); });
  return errors;
}

void clear(const Batch& batch, int64_t image) {
  // Both allowed layouts fill a slot without gaps.
  const int64_t values = 3 * batch.options.size * batch.options.size;
  for (int64_t view = 0; view < batch.each; ++view) {
    std::memset(batch.slot(image, view).data, 0,
                static_cast<size_t>(values * element_bytes(batch.options.element)));
  }
}

void set_affine(const Tensor& affine, BatchOptions& options) {
  check_cpu(affine, "affine", ScalarType::Float, "float32", 2);
  if (affine.numel() != 6) refuse("affine must hold a scale and a bias for each of 3 channels");
  const auto* factors = static_cast<const float*>(affine.const_data_ptr());
  std::copy_n(factors, 3, options.scale.begin());
  std::copy_n(factors + 3, 3, options.bias.begin());
}

// The indexes one after the other, and their lengths.
std::tuple<Tensor, Tensor> to_tensors(const std::vector<std::vector<uint8_t>>& indexes) {
  size_t total = 0;
  for (const auto& index : indexes) total += index.size();
  const std::array<int64_t, 1> bytes{static_cast<int64_t>(total)};
  const std::array<int64_t, 1> count{static_cast<int64_t>(indexes.size())};
  Tensor data = torch::stable::empty(bytes, ScalarType::Byte);
  Tensor lengths = torch::stable::empty(count, ScalarType::Long);
  auto* at = static_cast<uint8_t*>(data.mutable_data_ptr());
  auto* length = static_cast<int64_t*>(lengths.mutable_data_ptr());
  for (const auto& index : indexes) {
    at = std::copy(index.begin(), index.end(), at);
    *length++ = static_cast<int64_t>(index.size());
  }
  return {data, lengths};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> decode_crop_resize_batch(
    std::vector<Tensor> jpegs, Tensor boxes, Tensor out, std::vector<Tensor> indexes,
    std::optional<Tensor> flip, std::optional<Tensor> augment, Tensor affine, int64_t max_pixels,
    int64_t num_threads, bool mask_errors, double index_share) {
  if (num_threads < 0) refuse("num_threads must be 0 or more; got " + std::to_string(num_threads));
  Batch batch;
  batch.images = jpegs_bytes(jpegs);
  if (!indexes.empty()) {
    batch.side_indexes = jpegs_bytes(indexes);
    if (batch.side_indexes.size() != batch.images.size()) {
      refuse("indexes must hold one index for every image, empty or not");
    }
  }
  batch.max_pixels = max_pixels;
  set_affine(affine, batch.options);
  set_boxes(boxes, batch);
  set_out(out, batch);
  set_flips(flip, batch);
  set_operations(augment, batch);
  batch.index_share = index_share;
  if (index_share > 0) batch.new_indexes.resize(batch.images.size());

  const std::array<int64_t, 1> shape{batch.count()};
  Tensor failed = torch::stable::empty(shape, ScalarType::Bool);
  Tensor stale = torch::stable::empty(shape, ScalarType::Bool);
  batch.stale = static_cast<bool*>(stale.mutable_data_ptr());
  std::fill_n(batch.stale, batch.count(), false);
  const std::vector<std::string> errors = process_all(batch, num_threads);
  auto* mask = static_cast<bool*>(failed.mutable_data_ptr());
  for (int64_t i = 0; i < batch.count(); ++i) {
    const std::string& error = errors[static_cast<size_t>(i)];
    mask[i] = !error.empty();
    if (error.empty()) continue;
    if (!mask_errors) refuse("image " + std::to_string(i) + " of the batch: " + error);
    clear(batch, i);
  }
  const auto [new_indexes, lengths] = to_tensors(batch.new_indexes);
  return {failed, stale, new_indexes, lengths};
}

}  // namespace
}  // namespace custom_op

STABLE_TORCH_LIBRARY_FRAGMENT(custom_op, m) {
  m.def(
      "decode_crop_resize_batch(Tensor[] jpegs, Tensor boxes, Tensor(a!) out, *, "
      "Tensor[] indexes, Tensor? flip, Tensor? augment, Tensor affine, "
      "int max_pixels, int num_threads, bool mask_errors, float index_share) -> "
      "(Tensor failed, Tensor stale, Tensor new_indexes, Tensor new_index_lengths)");
}

STABLE_TORCH_LIBRARY_IMPL(custom_op, CPU, m) {
  m.impl("decode_crop_resize_batch", TORCH_BOX(&custom_op::decode_crop_resize_batch));
}
