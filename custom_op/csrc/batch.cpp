#include "batch.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "pixels/normalizer.h"
#include "pixels/orientation.h"

namespace custom_op {
namespace {

// Changes the strides to those of the stored image, so that rows can be written in decoding order.
Slot orient(Slot slot, const Orientation& orientation, int64_t size, size_t element_bytes) {
  const auto move = [&](int64_t elements) {
    slot.data = static_cast<char*>(slot.data) + elements * static_cast<int64_t>(element_bytes);
  };
  if (orientation.flipped) {
    move((size - 1) * slot.row_stride);
    slot.row_stride = -slot.row_stride;
  }
  if (orientation.mirrored) {
    move((size - 1) * slot.column_stride);
    slot.column_stride = -slot.column_stride;
  }
  if (orientation.transposed) std::swap(slot.row_stride, slot.column_stride);
  return slot;
}

template <typename T>
class SlotWriter final : public ResizedRows {
 public:
  SlotWriter(Slot slot, const BatchOptions& options)
      : slot_(slot), options_(options), normalizer_(options.scale, options.bias) {
    for (size_t c = 0; c < 3; ++c) {
      for (int v = 0; v < 256; ++v) table_[c][v] = element(static_cast<uint8_t>(v), c);
    }
  }

  void resized(int64_t y, const uint8_t* pixels) override {
    T* row = static_cast<T*>(slot_.data) + y * slot_.row_stride;
    if (slot_.channel_stride == 1 && slot_.column_stride == 3) return write_in_order(pixels, row);
    for (int c = 0; c < 3; ++c) {
      T* at = row + c * slot_.channel_stride;
      const T* table = table_[c];
      const int64_t step = slot_.column_stride;
      for (int64_t x = 0; x < options_.size; ++x) at[x * step] = table[pixels[3 * x + c]];
    }
  }

 private:
  T element(uint8_t value, size_t channel) const {
    if constexpr (std::is_same_v<T, uint8_t>) {
      return value;
    } else {
      return normalizer_.value(value, channel);
    }
  }

  // Copies or computes values that are contiguous in the slot: faster than the table.
  void write_in_order(const uint8_t* pixels, T* row) const {
    if constexpr (std::is_same_v<T, uint8_t>) {
      std::memcpy(row, pixels, static_cast<size_t>(options_.size) * 3);
    } else {
      normalizer_.write(pixels, options_.size, row);
    }
  }

  Slot slot_;
  const BatchOptions& options_;
  Normalizer normalizer_;
  T table_[3][256];
};

template <typename T>
void resize_into(RegionDecoder& decoder, Resizer& resizer, const Box& box, Orientation orientation,
                 const BatchOptions& options, const Slot& slot) {
  // The resizer mirrors stored rows at no cost. Columns that become rows are mirrored by the slot.
  const bool mirror = orientation.mirrored && !orientation.transposed;
  if (mirror) orientation.mirrored = false;
  SlotWriter<T> writer(orient(slot, orientation, options.size, sizeof(T)), options);
  resizer.configure(box.height, box.width, options.size, mirror, writer);
  decoder.decode(box, resizer);
}

template <typename T>
void copy_into(const Canvas& canvas, const BatchOptions& options, const Slot& slot) {
  SlotWriter<T> writer(slot, options);
  for (int64_t y = 0; y < canvas.size(); ++y) writer.resized(y, canvas.row(y));
}

}  // namespace

void ImageWorker::open(Bytes jpeg, Bytes side_index, int64_t max_pixels, double index_share) {
  decoder_.open(jpeg, max_pixels, side_index);
  decoder_.record_side_index(index_share);
}

void ImageWorker::cut(const Box& box, bool flip, const std::vector<Operation>& operations,
                      const BatchOptions& options, const Slot& slot) {
  Orientation orientation = orientation_of(decoder_.orientation());
  decoder_.check(box, orientation.transposed);
  const Box stored = stored_box(orientation, box, decoder_.height(), decoder_.width());
  if (flip) orientation.mirrored = !orientation.mirrored;
  const auto start = [&](auto type) {
    using T = decltype(type);
    if (operations.empty()) {
      return resize_into<T>(decoder_, resizer_, stored, orientation, options, slot);
    }
    Canvas& canvas = augmenter_.start(options.size);
    resize_into<uint8_t>(decoder_, resizer_, stored, orientation, options,
                         {canvas.row(0), 1, canvas.row_values(), 3});
    copy_into<T>(augmenter_.apply(operations), options, slot);
  };
  if (options.element == Element::kUint8) {
    start(uint8_t{});
  } else {
    start(float{});
  }
}

}  // namespace custom_op
