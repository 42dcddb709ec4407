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

// App names an application. Its canonical form has an empty namespace for the default one.
type App struct {
	ID        string // letters, digits, - and _
	Namespace string // empty = DefaultNamespace
}

// DefaultNamespace is the namespace of an application that names none.
const DefaultNamespace = "default"

// Canonical returns the one form that equal applications share.
func (a App) Canonical() App {
	if a.Namespace == DefaultNamespace {
		a.Namespace = ""
	}
	return a
}

// String is the application as a person writes it: "orders", or "orders.prod" outside the
// default namespace.
func (a App) String() string {
	if a = a.Canonical(); a.Namespace == "" {
		return a.ID
	}
	return a.ID + "." + a.Namespace
}

// ParseApp reads "orders", which is in the namespace given, or "orders.prod".
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

// Protocol is how an application is called.
type Protocol string

// The protocols. Another one, which a newer node may name, cannot be called from here.
const (
	NotCalled Protocol = "" // it has no port: it calls and is not called
	HTTP      Protocol = "http"
	HTTPS     Protocol = "https"
	H2C       Protocol = "h2c"
	GRPC      Protocol = "grpc"
	GRPCS     Protocol = "grpcs"
	unknown   Protocol = "unknown"
)

// protocolCodes is the form of protocols on the wire; a code is never used again.
func protocolCodes() []Protocol { return []Protocol{NotCalled, HTTP, HTTPS, H2C, GRPC, GRPCS} }

// Callable reports whether calls can be made by p.
func (p Protocol) Callable() bool { return p != NotCalled && p != unknown }

// Entry is what a node says about one application.
type Entry struct {
	App      App // canonical
	Protocol Protocol
	Healthy  bool
	Load     uint8 // 0 = idle, one more for each doubling of calls in flight
}

// Life is one run of one node.
type Life struct{ Node, Boot string }

// String is the life as gossip names it.
func (l Life) String() string { return l.Node + "/" + l.Boot }

func (l Life) compare(o Life) int {
	return cmp.Or(cmp.Compare(l.Node, o.Node), cmp.Compare(l.Boot, o.Boot))
}

// hash is the part of a life at a version in the digest of a whole catalogue.
func (l Life) hash(version uint64) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.BigEndian.AppendUint64(append(append([]byte(l.Node), '/'), l.Boot...), version))
	x := h.Sum64() // spread, because these are combined by exclusive or
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return x
}

// Record is everything a life says at one version. It never changes.
type Record struct {
	Life
	Version uint64
	Entries []Entry // by App
	size    int     // bytes, encoded
	hash    uint64
}

// Find returns the entry of an application in canonical form.
func (r *Record) Find(app App) (Entry, bool) {
	i, ok := slices.BinarySearchFunc(r.Entries, app, func(e Entry, a App) int { return e.App.compare(a) })
	if !ok {
		return Entry{}, false
	}
	return r.Entries[i], true
}

// Bounds limit what a Machine holds and says. The zero value is DefaultBounds.
type Bounds struct {
	Apps    int // applications of one node
	Record  int // bytes of one record, encoded
	Lives   int // records held
	Bytes   int // of all records held, encoded
	Message int // bytes of one broadcast; it has to fit a gossip packet beside its label and encryption
	Answer  int // bytes of the answer to a pull, unless one record is longer
}

// DefaultBounds hold some thousands of nodes.
func DefaultBounds() Bounds {
	return Bounds{Apps: 2048, Record: 256 << 10, Lives: 4096, Bytes: 64 << 20, Message: 1000, Answer: 256 << 10}
}

// maxName is the longest name of a node, an application or a namespace, in bytes.
const maxName = 128

func isName(s string) bool { return len(s) <= maxName && !strings.ContainsAny(s, "/|\x00") }

// valid reports whether an entry may be told and taken in.
func (e *Entry) valid() bool {
	return e.App.ID != "" && isName(e.App.ID) && isName(e.App.Namespace) && e.App == e.App.Canonical()
}

// valid reports whether there may be such a life.
func (l Life) valid() bool {
	return l.Node != "" && l.Boot != "" && isName(l.Node) && len(l.Boot) <= 32 && isName(l.Boot)
}

// check refuses entries that cannot be one record.
func (b Bounds) check(entries []Entry) error {
	if len(entries) > b.Apps {
		return fault.New(fault.TooLarge, "records.Serve", fmt.Sprintf("a node serves at most %d applications, not %d", b.Apps, len(entries)))
	}
	size := 0
	for i := range entries {
		e := &entries[i]
		if !e.valid() || protocolCode(e.Protocol) < 0 {
			return fault.New(fault.Invalid, "records.Serve", fmt.Sprintf("application %.150q with protocol %q cannot be told to other nodes", e.App, e.Protocol))
		}
		if i > 0 && entries[i-1].App == e.App {
			return fault.New(fault.Invalid, "records.Serve", fmt.Sprintf("application %s is served twice by one node", e.App))
		}
		size += entrySize(e)
	}
	if size > b.Record-recordOverhead {
		return fault.New(fault.TooLarge, "records.Serve", fmt.Sprintf("what this node says about its applications takes %d bytes, the limit is %d", size, b.Record))
	}
	return nil
}

// recordOverhead is more than a record takes beside its entries.
const recordOverhead = 2*maxName + 64
