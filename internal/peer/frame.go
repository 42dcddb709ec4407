package peer

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// The frames of a connection for calls. Numbers are big-endian:
//
//	length u32 | type u8 | flags u8 | stream u64 | body of that length
//
// Each call is a stream of frames. The caller sends one open frame, and data frames if the request is longer than one
// chunk. The callee sends an answer frame and its data frames, or a fail frame. The flag fin marks the last frame in
// one direction. A fail frame ends both directions. Stream numbers start at 1 and increase. Frames about the
// connection itself have the stream number 0.
//
// Flow control: neither side sends more bytes of payload than the other side has granted. Each stream starts with a
// fixed grant. The receiver grants more with window frames as it consumes payload. So the goroutine that reads the
// connection never has to wait for a slow stream, and the memory for unread payload is limited.
const (
	frameHead = 4 + 1 + 1 + 8

	chunk        = 32 << 10  // bytes of payload in one frame
	firstRequest = 64 << 10  // bytes of a request sent before the callee grants more
	firstAnswer  = 256 << 10 // bytes of an answer sent before the caller grants more
	fullWindow   = 1 << 20   // bytes in flight of a payload after the first window
	maxMethod    = 64        // bytes of a method name
)

type frameType uint8

const (
	frameOpen   frameType = 1 + iota // method u8 + bytes | timeout ms uvarint, 0 = none | size uvarint | first chunk
	frameAnswer                      // size uvarint | first chunk
	frameData                        // chunk
	frameFail                        // encoded fault
	frameReset                       // the caller cancels the call
	frameWindow                      // u32 more bytes may be sent
	framePing                        // answered at once by a pong
	framePong                        //
	frameGoAway                      // stream = last one accepted; later ones were not processed
	frameTypes
)

const (
	flagFin = 1 << iota // last frame of its direction
)

// frame is a frame without its body.
type frame struct {
	length int
	kind   frameType
	flags  uint8
	stream uint64
}

func (f frame) fin() bool { return f.flags&flagFin != 0 }

// bodyLimits returns the minimum and maximum length of the body of each frame type.
func bodyLimits() [frameTypes][2]int {
	return [frameTypes][2]int{
		frameOpen:   {3, 1 + maxMethod + 2*binary.MaxVarintLen64 + chunk},
		frameAnswer: {1, binary.MaxVarintLen64 + chunk},
		frameData:   {0, chunk},
		frameFail:   {2, maxAnswer},
		frameWindow: {4, 4},
	}
}

// limitsOf is the result of bodyLimits. It is never changed.
var limitsOf = bodyLimits()

func errProtocol(format string, a ...any) error {
	return &fault.Error{Code: fault.Corrupt, Op: "peer.read", Msg: "the peer violated the protocol: " +
		fmt.Sprintf(format, a...),
		Hint: "the connection is closed; if this repeats, compare the versions of the two nodes"}
}

func appendFrame(b []byte, kind frameType, flags uint8, stream uint64, parts ...[]byte) []byte {
	length := 0
	for _, p := range parts {
		length += len(p)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(length))
	b = append(b, byte(kind), flags)
	b = binary.BigEndian.AppendUint64(b, stream)
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// decodeFrame decodes the head of a frame. It returns an error if the type is unknown or the body has an invalid
// length.
func decodeFrame(b *[frameHead]byte) (frame, error) {
	f := frame{kind: frameType(b[4]), flags: b[5], stream: binary.BigEndian.Uint64(b[6:])}
	length := binary.BigEndian.Uint32(b[:])
	if f.kind == 0 || f.kind >= frameTypes {
		return frame{}, errProtocol("there is no frame type %d", f.kind)
	}
	if bound := limitsOf[f.kind]; length > math.MaxInt32 || int(length) < bound[0] || int(length) > bound[1] {
		return frame{}, errProtocol("a frame of type %d has %d bytes, %d to %d are right", f.kind, length, bound[0],
			bound[1])
	}
	f.length = int(length)
	return f, nil
}

// opening is the head of an open frame, the frame with which a caller begins a call.
type opening struct {
	method  string
	timeout time.Duration // 0 = none
	size    int           // bytes of the whole request
}

func (o opening) encode() []byte {
	b := make([]byte, 0, 1+len(o.method)+2*binary.MaxVarintLen64)
	b = appendString(b, o.method)
	b = binary.AppendUvarint(b, uint64((o.timeout+time.Millisecond-1)/time.Millisecond))
	return binary.AppendUvarint(b, uint64(o.size))
}

// decodeOpening decodes the body of an open frame: the head, and the first chunk of the request as payload.
func decodeOpening(body []byte) (o opening, payload []byte, err error) {
	d := decoder{b: body}
	o.method = d.string()
	timeout, size := d.uvarint(), d.uvarint()
	switch {
	case d.bad || o.method == "" || len(o.method) > maxMethod:
		return opening{}, nil, errProtocol("an open frame breaks its format")
	case timeout > uint64(math.MaxInt64/time.Millisecond) || size > math.MaxInt32:
		return opening{}, nil, errProtocol("an open frame asks for %d ms and %d bytes", timeout, size)
	}
	o.timeout, o.size = time.Duration(timeout)*time.Millisecond, int(size)
	return o, d.b, nil
}

func encodeSize(size int) []byte { return binary.AppendUvarint(nil, uint64(size)) }

// decodeSize decodes the body of an answer frame: the size of the whole answer, and the first chunk of it as payload.
func decodeSize(body []byte) (size int, payload []byte, err error) {
	d := decoder{b: body}
	n := d.uvarint()
	if d.bad || n > math.MaxInt32 {
		return 0, nil, errProtocol("an answer frame breaks its format")
	}
	return int(n), d.b, nil
}
