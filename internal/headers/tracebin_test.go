package headers_test

import (
	"testing"

	"github.com/quorate/quorate/internal/headers"
)

func TestTraceBinary_RoundTrip(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	binary := headers.TraceBinary(parent)
	if len(binary) != 29 || headers.TraceParent(binary) != parent {
		t.Errorf("%x became %s", binary, headers.TraceParent(binary))
	}
	for _, text := range []string{"", "00", "00-xx-yy-zz", parent[:50], "00-" + "zz" + parent[5:]} {
		if b := headers.TraceBinary(text); b != nil {
			t.Errorf("%q became %x", text, b)
		}
	}
	for _, b := range [][]byte{nil, binary[:28], append([]byte{1}, binary[1:]...)} {
		if text := headers.TraceParent(b); text != "" {
			t.Errorf("%x became %s", b, text)
		}
	}
}
