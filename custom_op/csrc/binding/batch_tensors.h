// The tensors of a batch, checked.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "batch.h"
#include "binding/tensors.h"

namespace custom_op {

struct Batch {
  std::vector<Bytes> images;
  std::vector<Bytes> side_indexes;  // one for every image, or none
  int64_t max_pixels = 0;
  bool several = false;  // boxes have a dimension of views
  int64_t each = 1;      // views of an image
  const int64_t* boxes = nullptr;
  const bool* flips = nullptr;                     // null: mirror none
  std::vector<std::vector<Operation>> operations;  // of every view, or none
  BatchOptions options;
  char* out = nullptr;
  Slot strides;  // of every slot, without its address
  int64_t image_bytes = 0, view_bytes = 0;
  double index_share = 0;  // of the new indexes, 0 for none
  std::vector<std::vector<uint8_t>> new_indexes;
  bool* stale = nullptr;  // of every image: its index did not fit; a failed image counts as false

  int64_t count() const { return static_cast<int64_t>(images.size()); }

  Slot slot(int64_t image, int64_t view) const {
    Slot slot = strides;
    slot.data = out + image * image_bytes + view * view_bytes;
    return slot;
  }
};

inline std::string shape_of(std::initializer_list<int64_t> sizes) {
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "(" : ", ") + std::to_string(size);
  return text + ")";
}

inline int64_t element_bytes(Element element) { return element == Element::kUint8 ? 1 : 4; }

inline Element element_of(const Tensor& out) {
  switch (out.scalar_type()) {
    case ScalarType::Byte:
      return Element::kUint8;
    case ScalarType::Float:
      return Element::kFloat32;
    default:
      refuse("out must be uint8 or float32; got another dtype");
  }
}

// int64 (images, 4), or (images, views, 4).
inline void set_boxes(const Tensor& boxes, Batch& batch) {
  batch.several = boxes.dim() == 3;
  check_cpu(boxes, "boxes", ScalarType::Long, "int64", batch.several ? 3 : 2);
  batch.each = batch.several ? boxes.size(1) : 1;
  if (boxes.size(0) != batch.count() || batch.each < 1 || boxes.size(boxes.dim() - 1) != 4) {
    refuse("boxes must have the shape " + shape_of({batch.count(), 4}) + ", or (" +
           std::to_string(batch.count()) + ", views, 4): top, left, height, width");
  }
  batch.boxes = static_cast<const int64_t*>(boxes.const_data_ptr());
}

// bool (images) or (images, views), as the boxes.
inline void set_flips(const std::optional<Tensor>& flip, Batch& batch) {
  if (!flip) return;
  check_cpu(*flip, "flip", ScalarType::Bool, "bool", batch.several ? 2 : 1);
  if (flip->size(0) != batch.count() || flip->numel() != batch.count() * batch.each) {
    refuse(std::string("flip must hold one bool for every ") + (batch.several ? "view" : "image"));
  }
  batch.flips = static_cast<const bool*>(flip->const_data_ptr());
}

// (images, 3, size, size), or (images, views, 3, size, size), as the boxes.
inline void set_out(const Tensor& out, Batch& batch) {
  if (!out.is_cpu()) refuse("out must be a CPU tensor, pinned or not");
  const int64_t count = batch.count(), last = out.dim() - 1, size = out.size(last);
  if (size < 1 || size > 16384) refuse("size must be 1 to 16384; got " + std::to_string(size));
  if (last != (batch.several ? 4 : 3) || out.size(0) != count || out.size(last - 2) != 3 ||
      out.size(last - 1) != size || (batch.several && out.size(1) != batch.each)) {
    refuse("out must have the shape " + (batch.several
                                             ? shape_of({count, batch.each, 3, size, size})
                                             : shape_of({count, 3, size, size})));
  }
  const int64_t values = 3 * size * size, by_image = out.stride(0);
  const int64_t by_view = batch.several ? out.stride(1) : values;
  batch.strides.channel_stride = out.stride(last - 2);
  batch.strides.row_stride = out.stride(last - 1);
  batch.strides.column_stride = out.stride(last);
  const auto [data, channel, row, column] = batch.strides;
  const bool planar = column == 1 && row == size && channel == size * size;
  const bool by_pixel = channel == 1 && column == 3 && row == 3 * size;
  const bool apart = (batch.each == 1 || by_view >= values) &&
                     (count == 1 || by_image >= (batch.each - 1) * by_view + values);
  if ((!planar && !by_pixel && size != 1) || !apart) {
    refuse("out must be contiguous or channels_last");
  }
  batch.options.size = size;
  batch.options.element = element_of(out);
  batch.out = static_cast<char*>(out.mutable_data_ptr());
  batch.image_bytes = by_image * element_bytes(batch.options.element);
  batch.view_bytes = by_view * element_bytes(batch.options.element);
}

// float32 (images, K, 8) or (images, views, K, 8), as the boxes. Checks the whole table, so that no
// image is decoded for a batch that is refused.
inline void set_operations(const std::optional<Tensor>& augment, Batch& batch) {
  if (!augment) return;
  const int64_t dimensions = batch.several ? 4 : 3, columns = kOperationColumns;
  check_cpu(*augment, "augment", ScalarType::Float, "float32", dimensions);
  const int64_t operations = augment->size(dimensions - 2);
  if (augment->size(0) != batch.count() || augment->size(dimensions - 1) != columns ||
      (batch.several && augment->size(1) != batch.each)) {
    refuse("augment must have the shape (" + std::to_string(batch.count()) +
           (batch.several ? ", " + std::to_string(batch.each) : "") + ", K, " +
           std::to_string(columns) + "): K operations for every " +
           (batch.several ? "view" : "image"));
  }
  const auto* row = static_cast<const float*>(augment->const_data_ptr());
  for (int64_t i = 0; i < batch.count() * batch.each; ++i, row += operations * columns) {
    const int64_t view = i % batch.each;
    for (int64_t k = 0; k < operations; ++k) {
      const std::string problem = operation_problem(row + k * columns, batch.options.size);
      if (problem.empty()) continue;
      refuse("augment: operation " + std::to_string(k) + " of image " +
             std::to_string(i / batch.each) +
             (batch.several ? ", view " + std::to_string(view) : "") + ": " + problem);
    }
    batch.operations.push_back(read_operations(row, operations));
  }
}

}  // namespace custom_op
