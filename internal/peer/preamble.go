package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/quorate/quorate/internal/fault"
)

// The preamble of a connection: a hello from the caller and an answer from the callee. Numbers are big-endian. The
// magic bytes, the version and the length have the same positions in every version. Therefore nodes of different
// versions can read a refusal.
//
//	hello   "qrtp" | version u8 | length u16 | kind u8 | epoch u64 | cluster, from, to: u8 + bytes | group uvarint
//	answer  "qrtp" | version u8 | status u8 | length u16 | epoch u64 | cluster, server: u8 + bytes    (status 0)
//	answer  ... the same up to length, then an encoded fault                            (status = Reason)
const (
	magic        = "qrtp"
	version      = 1
	helloHead    = len(magic) + 1 + 2
	answerHead   = len(magic) + 1 + 1 + 2
	maxHello     = 1 + 8 + 3*(1+maxID) + binary.MaxVarintLen32
	maxAnswer    = 4096
	maxFaultText = 512 // bytes of each text in a fault that is too long to send
)

// kind is the purpose of a connection.
type kind uint8

const (
	kindRaft kind = 1 + iota
	kindSnapshot
	kindCall
	kindJoin
	kindTunnel
	kinds
)

// String returns the value of the metric label "kind".
func (k kind) String() string {
	return [kinds]string{"unknown", "raft", "snapshot", "call", "join", "tunnel"}[k%kinds]
}

func (k kind) raft() bool { return k == kindRaft || k == kindSnapshot }

// hello is the first part of a preamble. The caller sends it to the callee.
type hello struct {
	kind    kind
	Epoch   uint64
	Cluster string
	From    string
	To      string
	group   uint32
}

func (h hello) encode() []byte {
	b := make([]byte, helloHead, helloHead+maxHello)
	b = append(b, byte(h.kind))
	b = binary.BigEndian.AppendUint64(b, h.Epoch)
	for _, s := range []string{h.Cluster, h.From, h.To} {
		b = appendString(b, s)
	}
	b = binary.AppendUvarint(b, uint64(h.group))
	copy(b, magic)
	b[len(magic)] = version
	binary.BigEndian.PutUint16(b[len(magic)+1:], uint16(len(b)-helloHead))
	return b
}

// errGarbage is the error for data that is not a preamble of the peer protocol. The port closes the connection without
// an answer.
var errGarbage = errors.New("no preamble")

// readHello reads a hello, and no byte after it. If it returns a *Refusal, the caller must send the refusal to the
// other side.
func readHello(r io.Reader) (hello, error) {
	var head [helloHead]byte
	if _, err := io.ReadFull(r, head[:len(magic)]); err != nil {
		return hello{}, err
	}
	if string(head[:len(magic)]) != magic {
		return hello{}, errGarbage
	}
	if _, err := io.ReadFull(r, head[len(magic):]); err != nil {
		return hello{}, err
	}
	if v := head[len(magic)]; v != version {
		return hello{}, errVersion("the caller", v, "the server called")
	}
	size := int(binary.BigEndian.Uint16(head[len(magic)+1:]))
	if size > maxHello {
		return hello{}, malformed(fmt.Sprintf("a preamble of %d bytes is longer than %d", size, maxHello))
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return hello{}, err
	}
	return decodeHello(body)
}

func errVersion(who string, theirs byte, other string) *Refusal {
	return refuse(ReasonVersion, fault.Unimplemented,
		fmt.Sprintf("%s speaks version %d of the peer protocol, %s version %d", who, theirs, other, version),
		"upgrade the older of the two nodes")
}

func malformed(msg string) *Refusal {
	return refuse(ReasonMalformed, fault.Invalid, msg, "what dials the peer port must be a Quorate node")
}

func decodeHello(b []byte) (hello, error) {
	d := decoder{b: b}
	h := hello{kind: kind(d.byte()), Epoch: d.uint64(), Cluster: d.string(), From: d.string(), To: d.string()}
	group := d.uvarint()
	switch {
	case d.bad || len(d.b) > 0:
		return hello{}, malformed("the preamble breaks its format")
	case h.kind == 0 || h.kind >= kinds:
		return hello{}, malformed(fmt.Sprintf("the preamble asks for something unknown, number %d", h.kind))
	case h.From == "" || h.To == "":
		return hello{}, malformed("the preamble names no server")
	case group > math.MaxUint32:
		return hello{}, malformed(fmt.Sprintf("there is no group %d", group))
	}
	h.group = uint32(group)
	return h, nil
}

// encodeAnswer encodes the answer to a hello. The answer contains the identity of this node, or the refusal if refused
// is not nil.
func encodeAnswer(self Identity, refused *Refusal) []byte {
	b := make([]byte, answerHead, 512)
	copy(b, magic)
	b[len(magic)] = version
	if refused != nil {
		b[len(magic)+1] = byte(refused.Reason)
		b = append(b, encodeFault(refused.Err)...)
	} else {
		b = binary.BigEndian.AppendUint64(b, self.Epoch)
		b = appendString(appendString(b, self.Cluster), self.Server)
	}
	binary.BigEndian.PutUint16(b[len(magic)+2:], uint16(len(b)-answerHead))
	return b
}

// readAnswer reads the answer to a hello, and no byte after it. It returns a *Refusal if the other side refused the
// connection.
func readAnswer(r io.Reader) (Identity, error) {
	var head [answerHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Identity{}, err
	}
	size := int(binary.BigEndian.Uint16(head[len(magic)+2:]))
	if string(head[:len(magic)]) != magic || size > maxAnswer {
		return Identity{}, errGarbage
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return Identity{}, err
	}
	status := Reason(head[len(magic)+1])
	if v := head[len(magic)]; status == 0 && v != version {
		return Identity{}, errVersion("the server called", v, "the caller")
	}
	return decodeAnswer(status, body)
}

func decodeAnswer(status Reason, body []byte) (Identity, error) {
	if status != 0 {
		e, ok := fault.As(fault.Unmarshal(body))
		if !ok {
			return Identity{}, errGarbage
		}
		return Identity{}, &Refusal{Reason: status, Err: e}
	}
	d := decoder{b: body}
	id := Identity{Epoch: d.uint64(), Cluster: d.string(), Server: d.string()}
	if d.bad || len(d.b) > 0 {
		return Identity{}, errGarbage
	}
	return id, nil
}

// encodeFault encodes err for an answer or a frame. If the encoding has more than maxAnswer bytes, encodeFault shortens
// the texts of err.
func encodeFault(err error) []byte {
	b := fault.Marshal(err)
	for limit := maxFaultText; len(b) > maxAnswer; limit /= 2 {
		b = fault.Marshal(shorten(err, limit))
	}
	return b
}

// shorten cuts every text of err to limit bytes. The code is kept.
func shorten(err error, limit int) error {
	cut := func(s string) string { return fault.Shorten(s, limit) }
	short := &fault.Error{Code: fault.CodeOf(err), Msg: cut(fault.Text(err)), Key: cut(fault.KeyOf(err))}
	if e, ok := fault.As(err); ok {
		short.Op, short.Hint = cut(e.Op), cut(e.Hint)
		if e.Msg != "" {
			short.Msg = cut(e.Msg)
		}
	}
	return short
}

func appendString(b []byte, s string) []byte {
	b = append(b, byte(min(len(s), maxID)))
	return append(b, s[:min(len(s), maxID)]...)
}

// decoder reads fields from the front of b. If b ends before a field, bad becomes true, and the decoder returns zero
// values from then on.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n int) []byte {
	if d.bad || len(d.b) < n {
		d.bad, d.b = true, nil
		return nil
	}
	out := d.b[:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) uint64() uint64 {
	if b := d.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if d.take(max(n, 0)); n <= 0 {
		d.bad = true
	}
	return v
}

func (d *decoder) string() string { return string(d.take(int(d.byte()))) }
