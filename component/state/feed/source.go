// Package feed delivers the changes of a store to many watchers. The package owns an in-memory copy of the newest
// changes of each watched prefix. The store owns the history of changes.
//
// A Hub has one topic for each watched prefix. The topic reads each new change once from a Source, which is the history
// of the prefix. The topic keeps the newest changes in memory for all watchers of the prefix. A watcher that needs
// older changes reads them from the Source itself. There is no queue for each watcher, so a slow watcher uses no extra
// memory and does not delay others.
//
// # Invariants
//
//   - A watch delivers every matching change after its start exactly once, in the order of revisions, until it ends
//     with an error. It never skips a change. If the history no longer contains the next change, the watch ends with
//     state.WatchCompacted.
//   - Change.Position is set only in the last matching change of a request. So a watch that resumes at a position never
//     starts in the middle of a request.
//   - Change.Position and WatchPart.Seen are revisions that the source has confirmed. A watch returns them only when it
//     has delivered every matching change up to that revision.
//
// Each topic has two goroutines, and temporarily a third one to confirm the position of idle watches. A Hub without
// watchers has no goroutines. All methods of a Hub are safe for concurrent use. Only one goroutine may use a watch.
package feed

import (
	"context"
	"time"

	"github.com/quorate/quorate/component/state"
)

// Page is a part of a history, as of one moment.
type Page struct {
	Changes  []state.Change
	Kept     bool   // false = the history is switched off
	ID       uint64 // identifies the history: no other history has this ID
	Floor    uint64 // all changes after this revision are kept
	Revision uint64 // newest revision of the store
	Restored uint64 // grows with every restore
	// Seen is the revision up to which Changes contains every change after the requested position. It is 0 if the
	// position is below Floor or above Revision; such a position cannot be served.
	Seen uint64
}

// Source is the history of one prefix. It is safe for concurrent use.
type Source interface {
	// Read returns the next changes after a position, about maxBytes of them. It returns at least one change if
	// there is any.
	Read(ctx context.Context, after uint64, maxBytes int) (Page, error)
	// Wait returns when there may be changes after a position, or ctx ends.
	Wait(ctx context.Context, after uint64)
	// Extend switches the history on if it is off, and otherwise keeps it on.
	Extend(ctx context.Context) error
	// Scan reads the current items.
	Scan(ctx context.Context, prefix string) (Scan, error)
	// Cluster returns the 8 hexadecimal digits that identify the cluster in positions.
	Cluster() string
}

// Scan reads the items of a prefix as of one moment.
type Scan interface {
	Revision() uint64
	Next(ctx context.Context, maxBytes int) (items []state.Change, more bool, err error)
	Close()
}

const (
	liveBytes   = 1 << 20          // size of the newest changes that a topic keeps in memory
	pageBytes   = 256 << 10        // about the size of the changes that a watch delivers at once
	extendTime  = 10 * time.Minute // how often a history is extended
	extendRetry = 2 * time.Second
	pause       = 200 * time.Millisecond
	aheadTime   = 5 * time.Second // how long a position may be ahead of the source
	maxSkipped  = 1000            // number of changes that do not match, after which a watch reports its position
)

// size returns about how many bytes of memory a change takes.
func size(c *state.Change) int { return len(c.Key) + len(c.Value) + len(c.ContentType) + 256 }
