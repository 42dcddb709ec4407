package headers

import (
	"encoding/hex"
	"strings"
)

// TraceBinary converts a W3C traceparent to the binary form of OpenCensus, which gRPC sends as grpc-trace-bin. It
// returns nil if the traceparent is invalid.
func TraceBinary(traceparent string) []byte {
	parts := strings.Split(traceparent, "-")
	if len(parts) < 4 || len(parts[1]) != 32 || len(parts[2]) != 16 || len(parts[3]) != 2 {
		return nil
	}
	out := []byte{0, 0} // version, then each field with its number
	var err error
	for i, field := range []string{parts[1], parts[2], parts[3]} {
		if i > 0 {
			out = append(out, byte(i))
		}
		if out, err = hex.AppendDecode(out, []byte(field)); err != nil {
			return nil
		}
	}
	return out
}

// TraceParent converts a value of grpc-trace-bin to a W3C traceparent. It returns "" if the value is not valid.
func TraceParent(binary []byte) string {
	if len(binary) < 29 || binary[0] != 0 || binary[1] != 0 || binary[18] != 1 || binary[27] != 2 {
		return ""
	}
	return "00-" + hex.EncodeToString(binary[2:18]) + "-" + hex.EncodeToString(binary[19:27]) + "-" +
		hex.EncodeToString(binary[28:29])
}
