package peer

import (
	"bytes"
	"io"
	"time"
)

// The wire format, for tests that write frames themselves.

// Hello returns the encoded hello with which a caller begins a connection.
func Hello(k string, from Identity, to string, group uint32) []byte {
	return hello{kind: kindNamed(k), Epoch: from.Epoch, Cluster: from.Cluster, From: from.Server, To: to,
		group: group}.encode()
}

func kindNamed(name string) kind {
	for k := range kinds {
		if k.String() == name {
			return k
		}
	}
	return 0
}

// AcceptAnswer returns the answer with which a callee accepts a connection.
func AcceptAnswer(self Identity) []byte { return encodeAnswer(self, nil) }

// RefuseAnswer returns the answer with which a callee refuses a connection.
func RefuseAnswer(r *Refusal) []byte { return encodeAnswer(Identity{}, r) }

// ReadHello reads a hello and returns its encoding.
func ReadHello(r io.Reader) ([]byte, error) {
	h, err := readHello(r)
	if err != nil {
		return nil, err
	}
	return h.encode(), nil
}

// ReadAnswer reads the answer to a hello.
func ReadAnswer(r io.Reader) (Identity, error) { return readAnswer(r) }

// Bounds of the wire.
const (
	MaxHello     = helloHead + maxHello
	Chunk        = chunk
	FirstRequest = firstRequest
	FirstAnswer  = firstAnswer
	MaxInFlight  = maxInFlight
	TunnelDials  = tunnelDials
)

// OpenFrame returns the open frame of a call, with the first bytes of the request.
func OpenFrame(id uint64, method string, timeout time.Duration, size int, first []byte) []byte {
	flags := uint8(0)
	if len(first) == size {
		flags = flagFin
	}
	return appendFrame(nil, frameOpen, flags, id, opening{method, timeout, size}.encode(), first)
}

// AnswerFrame returns the frame of a complete answer.
func AnswerFrame(id uint64, answer []byte) []byte {
	return appendFrame(nil, frameAnswer, flagFin, id, encodeSize(len(answer)), answer)
}

// AnswerPart returns the first frame of an answer that has further frames.
func AnswerPart(id uint64, size int, first []byte) []byte {
	return appendFrame(nil, frameAnswer, 0, id, encodeSize(size), first)
}

// FailFrame returns the frame of an error.
func FailFrame(id uint64, err error) []byte {
	return appendFrame(nil, frameFail, flagFin, id, encodeFault(err))
}

// DataFrame returns a frame with a part of the payload.
func DataFrame(id uint64, p []byte, fin bool) []byte {
	flags := uint8(0)
	if fin {
		flags = flagFin
	}
	return appendFrame(nil, frameData, flags, id, p)
}

// ResetFrame returns the frame that cancels a call.
func ResetFrame(id uint64) []byte { return appendFrame(nil, frameReset, 0, id) }

// WindowFrame returns the frame that grants n more bytes.
func WindowFrame(id uint64, n uint32) []byte {
	return appendFrame(nil, frameWindow, 0, id, []byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// PingFrame returns a ping frame.
func PingFrame() []byte { return appendFrame(nil, framePing, 0, 0) }

// GoAwayFrame returns a go-away frame: streams after last were not accepted.
func GoAwayFrame(last uint64) []byte { return appendFrame(nil, frameGoAway, 0, last) }

// DecodeAll applies every frame decoder to b. It returns the number of frames and the sum of the decoded sizes.
func DecodeAll(b []byte) (frames, carried int, err error) {
	r := bytes.NewReader(b)
	for {
		var head [frameHead]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return frames, carried, nil
		}
		f, err := decodeFrame(&head)
		if err != nil {
			return frames, carried, err
		}
		body := make([]byte, f.length)
		if _, err := io.ReadFull(r, body); err != nil {
			return frames, carried, nil
		}
		var payload []byte
		switch f.kind {
		case frameOpen:
			_, payload, err = decodeOpening(body)
		case frameAnswer:
			_, payload, err = decodeSize(body)
		case frameData:
			payload = body
		}
		if err != nil {
			return frames, carried, err
		}
		frames, carried = frames+1, carried+len(payload)
	}
}

// Links returns the number of servers that a client remembers.
func (c *Client) Links() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.links)
}
