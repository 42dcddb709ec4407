package records

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// App identifies an application. In its canonical form, the default namespace is the empty string.
type App struct {
	ID        string // letters, digits, - and _
	Namespace string // empty = DefaultNamespace
}

// DefaultNamespace is the namespace of an application that names none.
const DefaultNamespace = "default"

// Canonical returns a in canonical form. Two values of the same application have the same canonical form.
func (a App) Canonical() App {
	if a.Namespace == DefaultNamespace {
		a.Namespace = ""
	}
	return a
}

// String returns the application as users write it: "orders" in the default namespace, "orders.prod" in the namespace
// prod.
func (a App) String() string {
	if a = a.Canonical(); a.Namespace == "" {
		return a.ID
	}
	return a.ID + "." + a.Namespace
}

// ParseApp parses the name of an application. "orders.prod" is in the namespace prod, and "orders" is in the given
// namespace. The result is canonical.
func ParseApp(text, namespace string) App {
	if id, ns, ok := strings.Cut(text, "."); ok {
		return App{ID: id, Namespace: ns}.Canonical()
	}
	return App{ID: text, Namespace: namespace}.Canonical()
}

// compare orders applications by id, then namespace.
func (a App) compare(b App) int {
	return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Namespace, b.Namespace))
}

// Protocol is the protocol in which an application is called.
type Protocol string

// The protocols. A newer node may report other protocols. This node cannot call applications with such a protocol.
const (
	NotCalled Protocol = "" // the application has no port: it can call others, but cannot be called
	HTTP      Protocol = "http"
	HTTPS     Protocol = "https"
	H2C       Protocol = "h2c"
	GRPC      Protocol = "grpc"
	GRPCS     Protocol = "grpcs"
	unknown   Protocol = "unknown"
)

// protocolCodes returns all protocols that this version knows. The code of a protocol on the wire is its index in this
// list. A code is never reused.
func protocolCodes() []Protocol { return []Protocol{NotCalled, HTTP, HTTPS, H2C, GRPC, GRPCS} }

// Callable reports whether applications with protocol p can be called.
func (p Protocol) Callable() bool { return p != NotCalled && p != unknown }

// Entry describes one application that a node serves.
type Entry struct {
	App      App // canonical
	Protocol Protocol
	Healthy  bool
	Load     uint8 // 0 = idle; 1 more for each doubling of the calls in flight
}

// Incarnation is one run of one node.
type Incarnation struct{ Node, Boot string }

// String returns the incarnation as gossip names it.
func (l Incarnation) String() string { return l.Node + "/" + l.Boot }

func (l Incarnation) compare(o Incarnation) int {
	return cmp.Or(cmp.Compare(l.Node, o.Node), cmp.Compare(l.Boot, o.Boot))
}

// hash returns a hash of an incarnation and of the version of its record. Machine.Hash combines these hashes by
// exclusive or.
func (l Incarnation) hash(version uint64) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.BigEndian.AppendUint64(append(append([]byte(l.Node), '/'), l.Boot...), version))
	x := h.Sum64() // mixed, because the hashes are combined by exclusive or
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return x
}

// Record is everything an incarnation reports at one version. It never changes.
type Record struct {
	Incarnation
	Version uint64
	Entries []Entry // by App
	size    int     // bytes, encoded
	hash    uint64
}

// Find returns the entry of app, or false if there is none. app must be in canonical form.
func (r *Record) Find(app App) (Entry, bool) {
	i, ok := slices.BinarySearchFunc(r.Entries, app, func(e Entry, a App) int { return e.App.compare(a) })
	if !ok {
		return Entry{}, false
	}
	return r.Entries[i], true
}

// Bounds limit what a Machine holds and sends. The zero value means DefaultBounds.
type Bounds struct {
	Apps         int // applications of one node
	Record       int // bytes of one record, encoded
	Incarnations int // records held
	Bytes        int // bytes of all records held, encoded
	Message      int // bytes of one broadcast; it must fit into a gossip packet with its label and encryption
	Answer       int // bytes of the answer to a pull, unless one record is longer
}

// DefaultBounds returns bounds for some thousands of nodes.
func DefaultBounds() Bounds {
	return Bounds{Apps: 2048, Record: 256 << 10, Incarnations: 4096, Bytes: 64 << 20, Message: 1000, Answer: 256 << 10}
}

// maxName is the longest name of a node, an application or a namespace, in bytes.
const maxName = 128

func isName(s string) bool { return len(s) <= maxName && !strings.ContainsAny(s, "/|\x00") }

// valid reports whether an entry may be sent and accepted.
func (e *Entry) valid() bool {
	return e.App.ID != "" && isName(e.App.ID) && isName(e.App.Namespace) && e.App == e.App.Canonical()
}

// valid reports whether an incarnation may be accepted.
func (l Incarnation) valid() bool {
	return l.Node != "" && l.Boot != "" && isName(l.Node) && len(l.Boot) <= 32 && isName(l.Boot)
}

// check returns an error if entries cannot be the entries of one record. The entries must be sorted. The error is
// fault.TooLarge if the record would exceed the bounds. It is fault.Invalid if an entry is invalid or an application is
// listed twice.
func (b Bounds) check(entries []Entry) error {
	if len(entries) > b.Apps {
		return fault.New(fault.TooLarge, "records.Serve",
			fmt.Sprintf("a node serves at most %d applications, not %d", b.Apps, len(entries)))
	}
	size := 0
	for i := range entries {
		e := &entries[i]
		if !e.valid() || protocolCode(e.Protocol) < 0 {
			return fault.New(fault.Invalid, "records.Serve",
				fmt.Sprintf("application %.150q with protocol %q cannot be announced to other nodes", e.App,
					e.Protocol))
		}
		if i > 0 && entries[i-1].App == e.App {
			return fault.New(fault.Invalid, "records.Serve",
				fmt.Sprintf("application %s is served twice by one node", e.App))
		}
		size += entrySize(e)
	}
	if size > b.Record-recordOverhead {
		return fault.New(fault.TooLarge, "records.Serve",
			fmt.Sprintf("this node's record of its applications takes %d bytes, the limit is %d", size, b.Record))
	}
	return nil
}

// recordOverhead is an upper bound for the encoded size of a record without its entries, in bytes.
const recordOverhead = 2*maxName + 64
