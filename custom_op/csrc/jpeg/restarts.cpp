#include "jpeg/restarts.h"

namespace custom_op {
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
    const auto [marker, code] = next_marker(jpeg, begin);
    segments.push_back({begin, marker});
    if (code == jpeg.size) return false;
    if (jpeg.data[code] < 0xD0 || jpeg.data[code] > 0xD7) return segments.size() == expected;
    if (jpeg.data[code] != 0xD0 + (segments.size() - 1) % 8) return false;
    if (segments.size() == expected) return false;
    begin = code + 1;
  }
}

}  // namespace custom_op
