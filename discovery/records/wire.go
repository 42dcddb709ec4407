package records

import (
	"encoding/binary"
	"slices"

	"github.com/quorate/quorate/internal/fault"
)

// wireVersion is the version of the wire format. A message begins with this version and the kind of the message, in one
// byte each. The content follows:
//
//   - Lengths, counts and the versions of records are uvarints.
//   - A string is its length followed by its bytes.
//   - An entry of a record also begins with its length. A receiver skips unknown bytes at the end of an entry, so new
//     fields do not need a new version.
const wireVersion = 1

// Kind is the kind of a message.
type Kind byte

// The kinds. A number is never reused.
const (
	kindUpdate   Kind = 1 // a record, whole or the changes since a base
	kindAnnounce Kind = 2 // a record has a new version that is too long to broadcast
	kindSummary  Kind = 3 // a hash over all records of the sender
	kindDigest   Kind = 4 // all records of the sender by their versions
	kindAsk      Kind = 5 // a pull of a digest or of records
	kindRecords  Kind = 6 // the answer to a pull of records: updates
)

// Kinds lists every Kind.
func Kinds() []Kind {
	return []Kind{kindUpdate, kindAnnounce, kindSummary, kindDigest, kindAsk, kindRecords}
}

// String returns the name of a kind in metrics.
func (k Kind) String() string {
	words := [...]string{"", "update", "announce", "summary", "digest", "ask", "records"}
	if int(k) >= len(words) {
		return ""
	}
	return words[k]
}

// update is a record, or its changes after the version base.
type update struct {
	incarnation Incarnation
	base        uint64 // 0 = everything
	version     uint64
	put         []Entry // by App
	gone        []App   // by App; only with a base
}

// announcement is the version of a record.
type announcement struct {
	incarnation Incarnation
	version     uint64
}

// summary is the message with which a node sends its Machine.Hash.
type summary struct {
	sender Incarnation
	hash   uint64
}

// digest lists the versions of the records of all live incarnations, as one node knows them.
type digest struct {
	sender Incarnation
	list   []announcement // by incarnation
}

func header(k Kind) []byte { return []byte{wireVersion, byte(k)} }

func putText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func putLife(b []byte, l Incarnation) []byte { return putText(putText(b, l.Node), l.Boot) }

func protocolCode(p Protocol) int {
	if p == unknown {
		return codeUnknown // an unknown protocol is passed on as such
	}
	return slices.Index(protocolCodes(), p)
}

// codeUnknown is never the code of a protocol.
const codeUnknown = 255

const flagHealthy = 1

func putEntry(b []byte, e *Entry) []byte {
	var flags byte
	if e.Healthy {
		flags |= flagHealthy
	}
	fields := putText(putText(nil, e.App.ID), e.App.Namespace)
	fields = append(fields, byte(protocolCode(e.Protocol)), flags, e.Load)
	return append(binary.AppendUvarint(b, uint64(len(fields))), fields...)
}

// entrySize returns an upper bound for the number of bytes that putEntry adds.
func entrySize(e *Entry) int { return len(e.App.ID) + len(e.App.Namespace) + 9 }

func (u *update) encode() []byte { return u.append(header(kindUpdate)) }

func (u *update) append(b []byte) []byte {
	b = binary.AppendUvarint(binary.AppendUvarint(putLife(b, u.incarnation), u.base), u.version)
	b = binary.AppendUvarint(b, uint64(len(u.put)))
	for i := range u.put {
		b = putEntry(b, &u.put[i])
	}
	b = binary.AppendUvarint(b, uint64(len(u.gone)))
	for _, a := range u.gone {
		b = putText(putText(b, a.ID), a.Namespace)
	}
	return b
}

func (a *announcement) encode() []byte {
	return binary.AppendUvarint(putLife(header(kindAnnounce), a.incarnation), a.version)
}

func (s *summary) encode() []byte {
	return binary.BigEndian.AppendUint64(putLife(header(kindSummary), s.sender), s.hash)
}

func (d *digest) encode() []byte {
	b := putLife(header(kindDigest), d.sender)
	return putAnnouncements(b, d.list)
}

func putAnnouncements(b []byte, list []announcement) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, a := range list {
		b = binary.AppendUvarint(putLife(b, a.incarnation), a.version)
	}
	return b
}

// ask is the request that a node sends for a pull. The list contains the requested incarnations, each with the version
// that the requesting node already has. An empty list requests the digest.
type ask struct{ list []announcement }

func (a *ask) encode() []byte { return putAnnouncements(header(kindAsk), a.list) }

// reader parses a message. If the message is damaged, the field bad is true, and the values that were read must not be
// used.
type reader struct {
	b   []byte
	bad bool
}

// open checks the header of a message. It returns the kind of the message and a reader of the rest.
func open(b []byte) (Kind, *reader) {
	if len(b) < 2 || b[0] != wireVersion {
		return 0, &reader{bad: true}
	}
	return Kind(b[1]), &reader{b: b[2:]}
}

func (r *reader) number() uint64 {
	n, used := binary.Uvarint(r.b)
	if used <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[used:]
	return n
}

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) text() string { return string(r.take(r.number())) }

func (r *reader) octet() byte {
	if b := r.take(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (r *reader) incarnation() Incarnation {
	l := Incarnation{r.text(), r.text()}
	r.bad = r.bad || !l.valid()
	return l
}

// count reads the number of elements of a list. size is the minimum size of an element in bytes. If the rest of the
// message is too short for this number, count sets bad and returns 0. So a damaged message cannot make the caller
// allocate much memory.
func (r *reader) count(size int) int {
	n := r.number()
	if r.bad || n > uint64(len(r.b)/size) {
		r.bad, r.b = true, nil
		return 0
	}
	return int(n)
}

func (r *reader) app() App {
	a := App{r.text(), r.text()}
	r.bad = r.bad || a.ID == "" || !isName(a.ID) || !isName(a.Namespace) || a != a.Canonical()
	return a
}

func (r *reader) entry() Entry {
	f := reader{b: r.take(r.number())}
	e := Entry{App: f.app(), Protocol: unknown}
	if code, all := int(f.octet()), protocolCodes(); code < len(all) {
		e.Protocol = all[code]
	}
	e.Healthy, e.Load = f.octet()&flagHealthy != 0, f.octet()
	r.bad = r.bad || f.bad
	return e
}

func (r *reader) update() update {
	u := update{incarnation: r.incarnation(), base: r.number(), version: r.number()}
	const minEntry, minApp = 7, 3
	n := r.count(minEntry)
	if n > 0 {
		u.put = make([]Entry, 0, n)
	}
	for range n {
		u.put = append(u.put, r.entry())
	}
	for range r.count(minApp) {
		u.gone = append(u.gone, r.app())
	}
	r.bad = r.bad || u.version == 0 || u.base >= u.version || u.base == 0 && len(u.gone) > 0 || !u.sorted()
	return u
}

// sorted reports whether put and gone are each in strictly ascending order, and have no application in common.
func (u *update) sorted() bool {
	for i := 1; i < len(u.put); i++ {
		if u.put[i-1].App.compare(u.put[i].App) >= 0 {
			return false
		}
	}
	for i, a := range u.gone {
		if i > 0 && u.gone[i-1].compare(a) >= 0 {
			return false
		}
		if _, both := (&Record{Entries: u.put}).Find(a); both {
			return false
		}
	}
	return true
}

func (r *reader) announcement() announcement {
	a := announcement{r.incarnation(), r.number()}
	return a
}

func (r *reader) announcements(limit int) []announcement {
	const minAnnouncement = 5
	n := r.count(minAnnouncement)
	if n > limit {
		r.bad = true
		return nil
	}
	out := make([]announcement, 0, n)
	for range n {
		out = append(out, r.announcement())
	}
	return out
}

func (r *reader) summary() summary {
	s := summary{sender: r.incarnation()}
	if b := r.take(8); len(b) == 8 {
		s.hash = binary.BigEndian.Uint64(b)
	}
	return s
}

// end reports whether the message was read to its end without damage.
func (r *reader) end() bool { return !r.bad && len(r.b) == 0 }

func errUnreadable(what string) error {
	return &fault.Error{Code: fault.Unimplemented, Op: "records", Msg: what + " cannot be read",
		Hint: "run versions that are at most one apart"}
}
