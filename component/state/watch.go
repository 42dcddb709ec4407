package state

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Names of component metadata that limit the history of changes in stores with a Watcher.
const (
	MetadataWatchHistory    = "watchHistory"
	MetadataWatchHistoryAge = "watchHistoryAge"
)

// The defaults of HistoryBounds.
const (
	DefaultHistoryBytes = 64 << 20
	DefaultHistoryAge   = 10 * time.Minute
)

// HistoryBounds limit the history of changes that a store keeps for watchers of one prefix. A zero field means the
// default.
type HistoryBounds struct {
	Bytes int64
	Age   time.Duration
}

// WithDefaults returns b with every zero field replaced by its default.
func (b HistoryBounds) WithDefaults() HistoryBounds {
	if b.Bytes <= 0 {
		b.Bytes = DefaultHistoryBytes
	}
	if b.Age <= 0 {
		b.Age = DefaultHistoryAge
	}
	return b
}

// Position is a point in the sequence of changes of a store. It is directly after the change with the number Revision.
// A watch that resumes at a Position delivers the later changes.
type Position struct {
	Cluster  string // 8 hexadecimal digits of the cluster; empty = not checked
	Revision uint64
}

// String returns the form that ParsePosition reads.
func (p Position) String() string {
	text := strconv.FormatUint(p.Revision, 10)
	if p.Cluster != "" {
		return p.Cluster + "." + text
	}
	return text
}

// ParsePosition parses the text form of a position. The text is a revision such as "42", or a cluster id and a revision
// such as "0a1b2c3d.42". ParsePosition returns fault.Invalid for any other text.
func ParsePosition(text string) (p Position, err error) {
	cluster, revision, found := strings.Cut(text, ".")
	if !found {
		cluster, revision = "", text
	}
	p.Cluster = cluster
	if p.Revision, err = strconv.ParseUint(revision, 10, 63); err != nil || found && len(cluster) != positionCluster {
		return Position{}, invalid("state.ParsePosition", "position "+quote(text)+" is not one of a watch",
			"use the id or the revision of an earlier event, or 0 for everything that is kept")
	}
	return p, nil
}

// positionCluster is the number of digits of the cluster id that the text form of a position contains.
const positionCluster = 8

// WatchRequest asks for the changes of keys of one prefix.
type WatchRequest struct {
	Prefix   string   // stored key prefix; begins with the complete part before "||"
	Keys     []string // stored keys, all with the same part before "||"; empty = all keys with Prefix
	From     Position // position after which the watch starts; only if Resume is true
	Resume   bool     // false = the watch starts at the newest change
	Snapshot bool     // the watch first delivers the current items; From is ignored
}

// Change is one change of a key, or an item of a snapshot.
type Change struct {
	Item            // Value and ContentType of a removal are empty; ETag is the revision of the change
	Revision uint64 // revision of the new value, or of the removal
	Deleted  bool   // the key was removed
	Expired  bool   // the key was removed because it had expired
	Last     bool   // the last change of its request
	Position uint64 // everything up to this revision was delivered; 0 = not known
}

// WatchPart is a part of the changes of a watch, as one call of Next or Poll returns it.
type WatchPart struct {
	Items   []Change // items of a snapshot
	Synced  bool     // the snapshot is complete, as of Seen
	Changes []Change
	Seen    uint64 // everything up to this revision was delivered
}

// Watch is a running watch. Only one goroutine may use it.
type Watch interface {
	// Position returns the position up to which everything was delivered.
	Position() Position
	// Newest returns the revision of the newest change in the watched history that this node knows. The change may
	// have a key that the watch does not match. Newest is safe for concurrent use.
	Newest() uint64
	// Next waits until there are changes, wait has passed, or ctx ends. After wait, it returns a part without changes
	// and with a newer Seen. Its errors are *WatchEnd, or the errors of a Store.
	Next(ctx context.Context, wait time.Duration) (WatchPart, error)
	// Poll returns the next part if it is in memory. It does no I/O and does not wait. Watches that match the same
	// keys may get the same slice, so the caller must not modify it. It returns the same errors as Next.
	Poll() (WatchPart, Readiness, error)
	// Refresh asks for a part with a newer Seen, which Poll returns as soon as the store has confirmed it. Refresh
	// does not wait. Call it again later if there is no such part yet: the store may have failed.
	Refresh()
	// OnChange sets a function that is called whenever Poll may have something new. It is called with locks held, so
	// it must not block and must not use the watch. Call OnChange before the first Poll.
	OnChange(f func())
	// Close ends the watch.
	Close()
}

// Readiness is the state of a watch that Poll has found.
type Readiness int

// The values of Readiness.
const (
	WatchIdle   Readiness = iota // there is no part now
	WatchReady                   // Poll has returned a part
	WatchBehind                  // the next part must be read from the store: call Next
)

// Watcher is implemented by stores that report changes.
type Watcher interface {
	// Watch starts a watch. It returns *WatchEnd if the position is no longer kept, and fault.Invalid if the position
	// is from another cluster. It returns fault.Unavailable if the store cannot serve the watch now.
	Watch(ctx context.Context, r WatchRequest) (Watch, error)
}

// Reasons why a watch ends.
const (
	WatchCompacted = "compacted" // changes after the position are no longer kept
	WatchRestored  = "restored"  // a backup has replaced all data
	WatchClosing   = "closing"   // the node is stopping
	WatchMoved     = "moved"     // the node cannot finish the snapshot
	WatchSlow      = "slow"      // the client has taken nothing for too long
)

// WatchEnd is the error of a watch that cannot go on.
type WatchEnd struct {
	Reason  string
	Oldest  uint64 // the oldest position that can be served
	Current uint64 // the newest position
}

// Error describes why the watch has ended, and what to do.
func (e *WatchEnd) Error() string {
	switch e.Reason {
	case WatchCompacted:
		return "changes after this position are no longer kept; the oldest position is " +
			strconv.FormatUint(e.Oldest, 10) + ": start again with snapshot=true"
	case WatchRestored:
		return "a backup was restored; start again with snapshot=true"
	case WatchClosing:
		return "the node stops; continue at another node from this position"
	case WatchSlow:
		return "the client has taken nothing for too long; continue from this position"
	}
	return "this node cannot finish the snapshot; start again with snapshot=true"
}

// ErrForeignPosition returns the error for a position of another cluster.
func ErrForeignPosition(p Position, cluster string) error {
	return &fault.Error{Code: fault.Invalid, Op: "state.Watch",
		Msg:  "position " + p.String() + " is of another cluster; this one is " + cluster,
		Hint: "start again with snapshot=true"}
}
