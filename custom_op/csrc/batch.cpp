#include "batch.h"

#include <cstring>
#include <utility>

namespace custom_op {
namespace {

// Changes the strides to those of the stored image, so that rows can be written in decoding order.
Slot orient(Slot slot, const Orientation& orientation) {
  if (orientation.flipped) {
    slot.data += (slot.size - 1) * slot.row_stride;
    slot.row_stride = -slot.row_stride;
  }
  if (orientation.mirrored) {
    slot.data += (slot.size - 1) * slot.column_stride;
    slot.column_stride = -slot.column_stride;
  }
  if (orientation.transposed) std::swap(slot.row_stride, slot.column_stride);
  return slot;
}

class SlotWriter final : public ResizedRows {
 public:
  explicit SlotWriter(const Slot& slot) : slot_(slot) {}

  void resized(int64_t y, const uint8_t* pixels) override {
    uint8_t* const row = slot_.data + y * slot_.row_stride;
    if (slot_.channel_stride == 1 && slot_.column_stride == 3) {
      std::memcpy(row, pixels, static_cast<size_t>(slot_.size) * 3);
      return;
    }
    // As locals, because a byte that is written might be one of slot_.
    const int64_t size = slot_.size, step = slot_.column_stride;
    for (int64_t c = 0; c < 3; ++c) {
      uint8_t* const at = row + c * slot_.channel_stride;
      for (int64_t x = 0; x < size; ++x) at[x * step] = pixels[3 * x + c];
    }
  }

 private:
  const Slot slot_;
};

}  // namespace

void ImageWorker::open(Bytes jpeg, Bytes side_index, int64_t max_pixels, double index_share) {
  decoder_.open(jpeg, max_pixels, side_index);
  decoder_.record_side_index(index_share);
}

void ImageWorker::cut(const Box& box, bool flip, const std::vector<Operation>& operations,
                      const Slot& slot) {
  Orientation orientation = orientation_of(decoder_.orientation());
  decoder_.check(box, orientation.transposed);
  const Box stored = stored_box(orientation, box, decoder_.height(), decoder_.width());
  if (flip) orientation.mirrored = !orientation.mirrored;
  if (operations.empty()) return resize_into(stored, orientation, slot);
  Canvas& canvas = augmenter_.start(slot.size);
  resize_into(stored, orientation, {canvas.row(0), slot.size, 1, canvas.row_values(), 3});
  const Canvas& augmented = augmenter_.apply(operations);
  SlotWriter writer(slot);
  for (int64_t y = 0; y < slot.size; ++y) writer.resized(y, augmented.row(y));
}

void ImageWorker::resize_into(const Box& stored, Orientation orientation, const Slot& slot) {
  // The resizer mirrors stored rows at no cost. Columns that become rows are mirrored by the slot.
  const bool mirror = orientation.mirrored && !orientation.transposed;
  if (mirror) orientation.mirrored = false;
  SlotWriter writer(orient(slot, orientation));
  resizer_.configure(stored.height, stored.width, slot.size, mirror, writer);
  decoder_.decode(stored, resizer_);
}

}  // namespace custom_op
