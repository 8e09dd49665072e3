// The operators as torch calls them: their schemas, and the checks of the tensors they get.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <tuple>

#include "batch.h"
#include "to_baseline.h"

namespace custom_op {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Shape = std::vector<int64_t>;

struct Dtype {
  ScalarType type;
  const char* name;
};

constexpr Dtype kUint8{ScalarType::Byte, "uint8"}, kInt64{ScalarType::Long, "int64"},
    kBool{ScalarType::Bool, "bool"}, kFloat32{ScalarType::Float, "float32"};
constexpr int64_t kAny = -1;  // in a shape

[[noreturn]] void refuse(const std::string& message) { throw std::runtime_error(message); }

std::string text_of(const Shape& shape) {
  std::string text;
  for (const int64_t size : shape) {
    text += (text.empty() ? "(" : ", ") + (size == kAny ? "n" : std::to_string(size));
  }
  return text + ")";
}

Shape shape_of(const Tensor& tensor) {
  Shape shape;
  for (int64_t i = 0; i < tensor.dim(); ++i) shape.push_back(tensor.size(i));
  return shape;
}

Shape joined(Shape shape, const Shape& more) {
  shape.insert(shape.end(), more.begin(), more.end());
  return shape;
}

void check(const Tensor& tensor, const std::string& name, const Dtype& dtype, const Shape& shape) {
  if (!tensor.is_cpu()) refuse(name + " must be a CPU tensor; move it with .cpu()");
  if (tensor.scalar_type() != dtype.type) refuse(name + " must be a tensor of " + dtype.name);
  const Shape given = shape_of(tensor);
  const auto same = [](int64_t size, int64_t wanted) { return wanted == kAny || size == wanted; };
  if (!std::equal(given.begin(), given.end(), shape.begin(), shape.end(), same)) {
    refuse(name + " must have the shape " + text_of(shape) + "; got " + text_of(given));
  }
}

template <typename T>
const T* values_of(const Tensor& tensor, const std::string& name, const Dtype& dtype,
                   const Shape& shape) {
  check(tensor, name, dtype, shape);
  if (!tensor.is_contiguous()) refuse(name + " must be contiguous; use .contiguous()");
  return static_cast<const T*>(tensor.const_data_ptr());
}

Bytes bytes_of(const Tensor& data, const std::string& name) {
  return {values_of<uint8_t>(data, name, kUint8, {kAny}), static_cast<size_t>(data.numel())};
}

std::vector<Bytes> bytes_of(const std::vector<Tensor>& tensors, const std::string& name) {
  std::vector<Bytes> all;
  for (const Tensor& tensor : tensors) all.push_back(bytes_of(tensor, name));
  return all;
}

template <typename T>
T* data_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

Tensor to_tensor(const std::vector<uint8_t>& bytes) {
  const std::array<int64_t, 1> shape{static_cast<int64_t>(bytes.size())};
  Tensor tensor = torch::stable::empty(shape, ScalarType::Byte);
  std::copy(bytes.begin(), bytes.end(), data_of<uint8_t>(tensor));
  return tensor;
}

RegionDecoder& thread_decoder() {
  thread_local RegionDecoder decoder;
  return decoder;
}

class RowsInto final : public RowSink {
 public:
  RowsInto(uint8_t* out, int64_t row_bytes) : out_(out), row_bytes_(row_bytes) {}
  void begin() override { next_ = out_; }
  uint8_t* next() override { return next_; }
  void written() override { next_ += row_bytes_; }

 private:
  uint8_t* out_;
  int64_t row_bytes_;
  uint8_t* next_ = nullptr;
};

Tensor decode_and_crop_jpeg(Tensor data, int64_t crop_y, int64_t crop_x, int64_t crop_height,
                            int64_t crop_width, std::optional<Tensor> index, int64_t max_pixels) {
  RegionDecoder& decoder = thread_decoder();
  decoder.open(bytes_of(data, "data"), max_pixels, index ? bytes_of(*index, "index") : Bytes{});
  const Box box{crop_y, crop_x, crop_height, crop_width};
  decoder.check(box);
  const std::array<int64_t, 3> shape{crop_height, crop_width, 3};
  Tensor pixels = torch::stable::empty(shape, ScalarType::Byte);
  RowsInto sink(data_of<uint8_t>(pixels), crop_width * 3);
  decoder.decode(box, sink);
  // The stable ABI has no permute before torch 2.14.
  return torch::stable::transpose(torch::stable::transpose(pixels, 0, 2), 1, 2);
}

Tensor jpeg_headers(std::vector<Tensor> jpegs, bool mask_errors) {
  const std::vector<Bytes> images = bytes_of(jpegs, "every JPEG");
  const std::array<int64_t, 2> shape{static_cast<int64_t>(images.size()), 3};
  Tensor headers = torch::stable::empty(shape, ScalarType::Long);
  auto* row = data_of<int64_t>(headers);
  RegionDecoder& decoder = thread_decoder();
  for (const Bytes& jpeg : images) {
    std::array<int64_t, 3> values{};
    try {
      decoder.open(jpeg, INT64_MAX);
      values = {decoder.height(), decoder.width(), decoder.orientation()};
    } catch (const JpegError&) {
      if (!mask_errors) throw;
    }
    row = std::copy(values.begin(), values.end(), row);
  }
  return headers;
}

Tensor index_jpeg(Tensor data, double max_share, int64_t max_pixels) {
  RegionDecoder& decoder = thread_decoder();
  decoder.open(bytes_of(data, "data"), max_pixels);
  decoder.record_side_index(max_share);
  return to_tensor(decoder.finish_side_index());
}

Tensor rewrite_as_baseline(Tensor data, int64_t max_pixels) {
  return to_tensor(to_baseline(bytes_of(data, "data"), max_pixels));
}

// What is to be done to a batch. All pointers are into tensors of the right type and shape.
struct Batch {
  std::vector<Bytes> images, side_indexes;  // of side indexes one for every image, or none
  int64_t max_pixels = 0;
  double index_share = 0;  // of new side indexes, 0 for none
  Shape views;             // {images}, or {images, views} if the boxes have a dimension of views
  const int64_t* boxes = nullptr;
  const bool* flips = nullptr;                     // null: mirror none
  std::vector<std::vector<Operation>> operations;  // of every view, or none
  Slot first;                                      // the other slots differ in `data`
  int64_t image_stride = 0, view_stride = 0;

  int64_t count() const { return views[0]; }
  bool several() const { return views.size() == 2; }
  int64_t each() const { return several() ? views[1] : 1; }  // views of an image

  Slot slot(int64_t image, int64_t view) const {
    Slot slot = first;
    slot.data += image * image_stride + view * view_stride;
    return slot;
  }
};

void set_boxes(const Tensor& boxes, Batch& batch) {
  const auto count = static_cast<int64_t>(batch.images.size());
  batch.views = {count};
  if (boxes.dim() == 3) batch.views.push_back(boxes.size(1));
  if (batch.each() < 1) refuse("boxes must have one view or more of an image");
  batch.boxes = values_of<int64_t>(boxes, "boxes", kInt64, joined(batch.views, {4}));
}

// Both layouts fill a slot without gaps.
void set_out(const Tensor& out, Batch& batch) {
  const int64_t last = out.dim() - 1, size = out.size(last);
  if (size < 1 || size > 16384) refuse("size must be 1 to 16384; got " + std::to_string(size));
  check(out, "out", kUint8, joined(batch.views, {3, size, size}));
  const int64_t bytes = 3 * size * size, views = batch.each();
  batch.image_stride = out.stride(0);
  batch.view_stride = batch.several() ? out.stride(1) : bytes;
  const int64_t channel = out.stride(last - 2), row = out.stride(last - 1);
  const int64_t column = out.stride(last);
  const bool planar = column == 1 && row == size && channel == size * size;
  const bool by_pixel = channel == 1 && column == 3 && row == 3 * size;
  const bool apart =
      (views == 1 || batch.view_stride >= bytes) &&
      (batch.count() == 1 || batch.image_stride >= (views - 1) * batch.view_stride + bytes);
  if ((!planar && !by_pixel && size != 1) || !apart) {
    refuse("out must be contiguous or channels_last");
  }
  batch.first = {data_of<uint8_t>(out), size, channel, row, column};
}

// Checks the whole table, so that no image is decoded for a batch that is refused.
void set_operations(const Tensor& augment, Batch& batch) {
  const Shape shape = joined(batch.views, {kAny, kOperationColumns});
  const float* row = values_of<float>(augment, "augment", kFloat32, shape);
  const int64_t operations = augment.size(augment.dim() - 2), views = batch.each();
  for (int64_t i = 0; i < batch.count() * views; ++i, row += operations * kOperationColumns) {
    for (int64_t k = 0; k < operations; ++k) {
      const std::string problem = operation_problem(row + k * kOperationColumns, batch.first.size);
      if (problem.empty()) continue;
      refuse("augment: operation " + std::to_string(k) + " of image " + std::to_string(i / views) +
             (batch.several() ? ", view " + std::to_string(i % views) : "") + ": " + problem);
    }
    batch.operations.push_back(read_operations(row, operations));
  }
}

// What became of an image.
struct Outcome {
  std::string error;  // empty if all its views were cut
  bool stale = false;
  std::vector<uint8_t> new_index{};
};

Outcome process(const Batch& batch, int64_t image) {
  thread_local ImageWorker worker;
  static const std::vector<Operation> kNone;
  const auto i = static_cast<size_t>(image);
  int64_t view = -1;  // none: opening the file failed
  try {
    worker.open(batch.images[i], batch.side_indexes.empty() ? Bytes{} : batch.side_indexes[i],
                batch.max_pixels, batch.index_share);
    for (view = 0; view < batch.each(); ++view) {
      const int64_t at = image * batch.each() + view;
      const int64_t* box = batch.boxes + 4 * at;
      worker.cut({box[0], box[1], box[2], box[3]}, batch.flips != nullptr && batch.flips[at],
                 batch.operations.empty() ? kNone : batch.operations[static_cast<size_t>(at)],
                 batch.slot(image, view));
    }
    const bool stale = worker.has_stale_index();
    return {"", stale, batch.index_share > 0 ? worker.finish_index() : std::vector<uint8_t>{}};
  } catch (const std::exception& failure) {
    const std::string reason = failure.what();
    const bool of_view = batch.several() && view >= 0;
    return {(of_view ? "view " + std::to_string(view) + ": " : "") +
            (reason.empty() ? "unknown error" : reason)};
  }
}

void clear(const Batch& batch, int64_t image) {
  const auto bytes = static_cast<size_t>(3 * batch.first.size * batch.first.size);
  for (int64_t view = 0; view < batch.each(); ++view) {
    std::memset(batch.slot(image, view).data, 0, bytes);
  }
}

std::tuple<Tensor, Tensor, Tensor, Tensor> process_all(const Batch& batch, bool mask_errors) {
  const bool makes_indexes = batch.index_share > 0;
  const std::array<int64_t, 1> count{batch.count()}, made{makes_indexes ? count[0] : 0};
  Tensor failed = torch::stable::empty(count, ScalarType::Bool);
  Tensor stale = torch::stable::empty(count, ScalarType::Bool);
  Tensor lengths = torch::stable::empty(made, ScalarType::Long);
  std::vector<uint8_t> new_indexes;  // one after the other
  for (int64_t i = 0; i < batch.count(); ++i) {
    const Outcome outcome = process(batch, i);
    const bool has_failed = !outcome.error.empty();
    if (has_failed && !mask_errors) {
      refuse("image " + std::to_string(i) + " of the batch: " + outcome.error);
    }
    if (has_failed) clear(batch, i);
    data_of<bool>(failed)[i] = has_failed;
    data_of<bool>(stale)[i] = outcome.stale;
    if (!makes_indexes) continue;
    data_of<int64_t>(lengths)[i] = static_cast<int64_t>(outcome.new_index.size());
    new_indexes.insert(new_indexes.end(), outcome.new_index.begin(), outcome.new_index.end());
  }
  return {failed, stale, to_tensor(new_indexes), lengths};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> decode_crop_resize_batch(
    std::vector<Tensor> jpegs, Tensor boxes, Tensor out, std::vector<Tensor> indexes,
    std::optional<Tensor> flip, std::optional<Tensor> augment, int64_t max_pixels, bool mask_errors,
    double index_share) {
  Batch batch;
  batch.images = bytes_of(jpegs, "every JPEG");
  batch.side_indexes = bytes_of(indexes, "every index");
  if (!indexes.empty() && indexes.size() != jpegs.size()) {
    refuse("indexes must hold one index for every image, empty or not");
  }
  batch.max_pixels = max_pixels;
  batch.index_share = index_share;
  set_boxes(boxes, batch);
  set_out(out, batch);
  if (flip) batch.flips = values_of<bool>(*flip, "flip", kBool, batch.views);
  if (augment) set_operations(*augment, batch);
  return process_all(batch, mask_errors);
}

}  // namespace
}  // namespace custom_op

STABLE_TORCH_LIBRARY(custom_op, m) {
  m.def(
      "decode_and_crop_jpeg(Tensor data, int crop_y, int crop_x, int crop_height, int crop_width, "
      "*, Tensor? index, int max_pixels) -> Tensor");
  m.def(
      "decode_crop_resize_batch(Tensor[] jpegs, Tensor boxes, Tensor(a!) out, *, "
      "Tensor[] indexes, Tensor? flip, Tensor? augment, int max_pixels, bool mask_errors, "
      "float index_share) -> "
      "(Tensor failed, Tensor stale, Tensor new_indexes, Tensor new_index_lengths)");
  m.def("index_jpeg(Tensor data, *, float max_share, int max_pixels) -> Tensor");
  m.def("jpeg_headers(Tensor[] jpegs, *, bool mask_errors) -> Tensor");
  m.def("to_baseline(Tensor data, *, int max_pixels) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(custom_op, CPU, m) {
  m.impl("decode_and_crop_jpeg", TORCH_BOX(&custom_op::decode_and_crop_jpeg));
  m.impl("decode_crop_resize_batch", TORCH_BOX(&custom_op::decode_crop_resize_batch));
  m.impl("index_jpeg", TORCH_BOX(&custom_op::index_jpeg));
  m.impl("jpeg_headers", TORCH_BOX(&custom_op::jpeg_headers));
  m.impl("to_baseline", TORCH_BOX(&custom_op::rewrite_as_baseline));
}
