package actors

import (
	"encoding/binary"
	"net/http"
	"net/textproto"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
)

// Method is the name of the peer call that carries an actor call to another node. The name and the encoding of the
// peer call are part of the wire protocol between nodes.
const Method = "actors.call"

const wireForm = 1

func text(b []byte, s string) []byte { return append(binary.AppendUvarint(b, uint64(len(s))), s...) }

func appendHeader(b []byte, h http.Header) []byte {
	b = binary.AppendUvarint(b, uint64(countFields(h))) //nolint:gosec // not negative
	for name, values := range h {
		for _, v := range values {
			b = text(text(b, name), v)
		}
	}
	return b
}

// maxWireFields is the maximum number of headers that a node accepts in a call or an answer from another node. Nodes
// never send more, because they have a lower limit for the headers that they receive from applications.
const maxWireFields = 10_000

func readHeader(r *lenprefix.Reader) http.Header {
	h := http.Header{}
	n := r.Count()
	if n > maxWireFields {
		r.Bad = true
		return h
	}
	for range n {
		name := textproto.CanonicalMIMEHeaderKey(r.Text())
		h[name] = append(h[name], r.Text())
	}
	return h
}

// EncodeCall encodes a call for another node.
func EncodeCall(target api.App, c *Call) []byte {
	b := make([]byte, 0, len(c.Body)+512)
	b = text(text(append(b, wireForm), target.ID), target.Namespace)
	b = text(text(text(text(text(b, c.Actor.Type), c.Actor.ID), c.Callback), c.Method), c.Verb)
	b = text(text(b, c.Caller.ID), c.Caller.Namespace)
	return append(appendHeader(b, c.Header), c.Body...)
}

// DecodeCall decodes a call from EncodeCall. It does not verify the identity of the caller, so c.Caller.Proven is
// false.
func DecodeCall(b []byte) (target api.App, c *Call, err error) {
	r := lenprefix.Reader{Rest: b}
	form := r.Byte()
	target = api.App{ID: r.Text(), Namespace: r.Text()}
	c = &Call{Actor: api.Actor{Type: r.Text(), ID: r.Text()}, Callback: r.Text(), Method: r.Text(),
		Verb: r.Text()}
	c.Caller.ID, c.Caller.Namespace = r.Text(), r.Text()
	c.Header, c.Body = readHeader(&r), r.All()
	if r.Bad || form != wireForm {
		return target, c, &fault.Error{Code: fault.Unimplemented, Op: "actors.Call",
			Msg: "a call of an actor from another node cannot be decoded", Hint: "run the same version on all nodes"}
	}
	return target, c, nil
}

// EncodeAnswer encodes an answer for another node.
func EncodeAnswer(a *Answer) []byte {
	b := append(make([]byte, 0, len(a.Body)+256), wireForm)
	b = binary.AppendUvarint(b, uint64(a.Status)) //nolint:gosec // positive
	return append(appendHeader(b, a.Header), a.Body...)
}

// DecodeAnswer decodes what EncodeAnswer encodes.
func DecodeAnswer(b []byte) (Answer, error) {
	r := lenprefix.Reader{Rest: b}
	form := r.Byte()
	a := Answer{Status: int(min(r.Uvarint(), 999))} //nolint:gosec // bounded
	a.Header, a.Body = readHeader(&r), r.All()
	if r.Bad || form != wireForm {
		return a, &fault.Error{Code: fault.Indeterminate, Op: "actors.Call",
			Msg: "the answer of another node cannot be decoded", Hint: "run the same version on all nodes"}
	}
	return a, nil
}
