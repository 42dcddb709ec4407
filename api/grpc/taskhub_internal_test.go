package grpc

import (
	"bytes"
	"errors"
	"io"
	"math"
	"testing"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// readLost accepts an answer that ends anywhere or has any bytes, because answers above a limit are not validated.
func TestReadLost_OfAnyBytes(t *testing.T) {
	whole, err := proto.Marshal(&protos.ActivityResponse{InstanceId: "i", TaskId: -7, CompletionToken: "token",
		Result: wrapperspb.String("result")})
	if err != nil {
		t.Fatal(err)
	}
	for size := range len(whole) + 1 {
		a, err := readLost(bytes.NewReader(whole[:size]), 5)
		if err != nil || (a.token == "token") != (size == len(whole)) || a.token != "token" && a.token != "" {
			t.Errorf("of %d bytes: %+v, %v", size, a, err)
		}
		if size == len(whole) && (a.id != "i" || a.task != -7) {
			t.Errorf("the whole answer: %+v", a)
		}
	}
	field := func(num protowire.Number, typ protowire.Type, rest ...byte) []byte {
		return append(protowire.AppendTag(nil, num, typ), rest...)
	}
	id := protowire.AppendString(field(1, protowire.BytesType), "i")
	for name, begin := range map[string][]byte{
		"fixed32":      field(9, protowire.Fixed32Type, 1, 2, 3, 4),
		"fixed64":      field(9, protowire.Fixed64Type, 1, 2, 3, 4, 5, 6, 7, 8),
		"unknown text": protowire.AppendString(field(9, protowire.BytesType), "x"),
	} {
		if a, err := readLost(bytes.NewReader(append(begin, id...)), 5); err != nil || a.id != "i" {
			t.Errorf("after %s: %+v, %v", name, a, err)
		}
	}
	for name, message := range map[string][]byte{
		"an id without end":    protowire.AppendVarint(field(1, protowire.BytesType), math.MaxUint64),
		"a group":              append(field(9, protowire.StartGroupType), id...),
		"a number of 11 bytes": field(2, protowire.VarintType, bytes.Repeat([]byte{0xff}, 11)...),
	} {
		if a, _ := readLost(bytes.NewReader(message), 5); a != (lostAnswer{}) {
			t.Errorf("%s: %+v", name, a)
		}
	}
	gone := errors.New("the worker has gone")
	if _, err := readLost(io.MultiReader(bytes.NewReader(id), failingReader{gone}), 5); !errors.Is(err, gone) {
		t.Errorf("the error is %v", err)
	}
}

type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }
