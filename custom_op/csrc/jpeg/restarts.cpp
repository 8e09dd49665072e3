#include "jpeg/restarts.h"

#include <cstring>

namespace custom_op {
namespace {

// The offset of the next FF, at `at` or later, that starts a marker; jpeg.size if there is none.
size_t next_marker(Bytes jpeg, size_t at) {
  while (at < jpeg.size) {
    const void* found = std::memchr(jpeg.data + at, 0xFF, jpeg.size - at);
    if (found == nullptr) return jpeg.size;
    const size_t begin = static_cast<size_t>(static_cast<const uint8_t*>(found) - jpeg.data);
    at = begin + 1;
    while (at < jpeg.size && jpeg.data[at] == 0xFF) ++at;
    if (at == jpeg.size) return jpeg.size;
    if (jpeg.data[at] != 0) return begin;
  }
  return jpeg.size;
}

}  // namespace

bool index_restarts(Bytes jpeg, const Header& header, std::vector<Range>& segments) {
  segments.clear();
  if (header.restart_interval == 0) {
    segments.push_back({header.scan_data, jpeg.size});
    return true;
  }
  const int64_t mcus = header.mcu_rows * header.mcus_per_row;
  const auto expected = static_cast<size_t>(divide_up(mcus, header.restart_interval));
  size_t begin = header.scan_data;
  while (true) {
    const size_t marker = next_marker(jpeg, begin);
    segments.push_back({begin, marker});
    if (marker >= jpeg.size) return false;
    size_t code = marker + 1;
    while (jpeg.data[code] == 0xFF) ++code;
    if (jpeg.data[code] < 0xD0 || jpeg.data[code] > 0xD7) return segments.size() == expected;
    if (jpeg.data[code] != 0xD0 + (segments.size() - 1) % 8) return false;
    if (segments.size() == expected) return false;
    begin = code + 1;
  }
}

}  // namespace custom_op
