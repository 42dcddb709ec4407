package pubsub

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// A state store outside the cluster and a topic cannot change in one transaction. So the events of a transaction are
// stored in the internal topic first. The transaction then creates one record in the store for each event: the marker
// of the event. The relay of an event looks for its marker.
//
// Invariants:
//
//   - A marker is created once and never changed. Either the transaction creates it, or the node that gives the event
//     up. If the event was given up first, the transaction stores nothing.
//   - An event is published only if its transaction has created the marker. The marker has a checksum of the event. So
//     a program with access to the broker cannot replace the event by another one.
//   - An event leaves the internal topic after it was published or given up. The marker is removed after the publish,
//     and before the event leaves the topic. So an event is published twice only if a node ends in between.

// markerPrefix begins the keys of markers. The API admits no key with this text.
const markerPrefix = "quorate" + state.Separator

// outboxPrefix begins the ids of the events of outboxes. A UUID of idLength bytes follows.
const (
	outboxPrefix = "outbox-"
	idLength     = 36
)

// The values of markers are JSON texts: markerDiscarded, or what committedMarker returns.
const (
	markerDiscarded = `"discarded"`
	markerCommitted = `"committed `
)

// committedMarker returns the value of the marker of an event that a transaction publishes.
func committedMarker(key string, event []byte) string {
	sum := sha256.New()
	sum.Write(binary.AppendUvarint(nil, uint64(len(key))))
	sum.Write([]byte(key))
	sum.Write(event)
	return markerCommitted + hex.EncodeToString(sum.Sum(nil)) + `"`
}

const (
	// doubtTime is how long a relay waits for the marker of an event, counted from the time when the event was
	// published to the internal topic. If there is no marker by then, the relay gives the event up.
	doubtTime = 10 * time.Second
	// minDoubt is the minimum time for which a relay waits for a marker. If the clock of the publishing node is slow,
	// an event seems to be older than it is, and the relay would give it up too early.
	minDoubt = time.Second
	// firstLook and lastLook are the shortest and the longest pause between two reads of a relay that waits for a
	// marker.
	firstLook = 2 * time.Millisecond
	lastLook  = time.Second
	// discardedTime is how long the store keeps the marker of an event that was given up. The marker makes the
	// transaction of the event fail, so it must outlast this transaction.
	discardedTime = time.Hour
	// markerTime bounds one request about a marker.
	markerTime = 5 * time.Second
)

// marked is the JSON form of an event in the internal topic. It contains everything that the relay needs, because a
// broker may drop the metadata of messages.
type marked struct {
	ID       string            `json:"id"`
	Key      string            `json:"key,omitempty"`
	Store    string            `json:"store"`              // store with the marker
	Metadata map[string]string `json:"metadata,omitempty"` // metadata of the requests about the marker
	Begun    time.Time         `json:"begun"`              // when the event was published to the internal topic
	Event    []byte            `json:"event"`
}

// mark wraps the data of each message in a marked event.
func mark(store *state.Instance, metadata map[string]string, messages []pubsub.Message, now time.Time) error {
	for n := range messages {
		m := &messages[n]
		data, err := json.Marshal(marked{ID: m.ID, Key: m.Key, Store: store.Name, Metadata: metadata,
			Begun: now, Event: m.Data})
		if err != nil {
			return err
		}
		m.Data, m.ContentType = data, contentJSON
	}
	return nil
}

// errForeign is the error for a message in the internal topic that does not come from an outbox. Any program with
// access to the broker can send such a message.
type errForeign struct{ reason string }

// Error returns the reason.
func (e errForeign) Error() string { return e.reason }

// unmark returns the marked event of a message, or errForeign.
func unmark(m *pubsub.Message) (e marked, err error) {
	if err := json.Unmarshal(m.Data, &e); err != nil {
		return e, errForeign{err.Error()}
	}
	if !isOutboxID(e.ID) {
		return e, errForeign{"its id " + strconv.Quote(api.ShortenName(e.ID)) + " is not of an outbox"}
	}
	return e, nil
}

// isOutboxID reports whether id can be the id of an event of an outbox (see wrapChange). The key of a marker contains
// the id, so a foreign message with any other id could refer to any key of the store.
func isOutboxID(id string) bool {
	rest, ok := strings.CutPrefix(id, outboxPrefix)
	return ok && len(rest) == idLength && uuid.Validate(rest) == nil
}

// markers has the markers of the events of one store.
type markers struct {
	store    *state.Instance
	app      string
	metadata map[string]string // metadata of the requests, such as the partition of the markers; nil = none
}

func (m *markers) key(id string) string { return m.store.StoredKey(m.app, markerPrefix+id) }

func (m *markers) write(id, value string) state.Write {
	return state.Write{Key: m.key(id), Value: []byte(value), Concurrency: state.FirstWrite, TTL: state.TTL{Set: true},
		Metadata: m.metadata}
}

// operations returns the operations that create the markers of events, for the transaction. It must be called before
// mark, because mark replaces the data of the events.
func (m *markers) operations(events []pubsub.Message) []state.Operation {
	out := make([]state.Operation, len(events))
	for n := range events {
		e := &events[n]
		out[n] = state.Operation{Kind: state.Upsert, Write: m.write(e.ID, committedMarker(e.Key, e.Data))}
	}
	return out
}

// discard gives up events whose transaction has certainly failed, so that their relay need not wait for the markers. If
// discard fails, the relay gives up the events later.
func (m *markers) discard(ctx context.Context, events []pubsub.Message) {
	ids := make([]string, len(events))
	for n := range events {
		ids[n] = events[n].ID
	}
	_ = m.create(context.WithoutCancel(ctx), ids...)
}

// create gives up events by creating their markers with the value markerDiscarded. It returns fault.Conflict if one of
// the events already has a marker.
func (m *markers) create(ctx context.Context, ids ...string) error {
	ctx, cancel := context.WithTimeout(ctx, markerTime)
	defer cancel()
	items := make([]state.Write, len(ids))
	for n, id := range ids {
		items[n] = m.write(id, markerDiscarded)
		if slices.Contains(m.store.Features, state.FeatureTTL) {
			items[n].TTL.Seconds = int64(discardedTime / time.Second)
		}
	}
	_, err := m.store.Store.Set(ctx, state.SetRequest{Consistency: state.Strong, Items: items})
	return err
}

// committed reports whether the transaction of an event has been committed. A committed transaction has stored the
// marker of the event. If there is no marker yet, committed waits for it until doubtTime after e.Begun. The wait takes
// at least minDoubt and at most doubtTime. If there is still no marker, committed gives the event up (see create), so
// the transaction can no longer be committed.
func (m *markers) committed(ctx context.Context, e *marked) (bool, error) {
	doubt := time.Now().Add(min(max(doubtTime-time.Since(e.Begun), minDoubt), doubtTime))
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		found, committed, err := m.read(ctx, e)
		if err != nil || found {
			return committed, err
		}
		if time.Now().After(doubt) {
			break
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(pause):
		}
	}
	switch err := m.create(ctx, e.ID); {
	case err == nil:
		return false, nil
	case fault.Is(err, fault.Conflict):
		found, committed, err := m.read(ctx, e)
		if err == nil && !found { // reads of some stores are behind their writes
			err = fault.New(fault.Unavailable, "pubsub.relay", "state store "+m.store.Name+" does not return the key "+
				m.key(e.ID)+" yet")
		}
		return committed, err
	case fault.Is(err, fault.Invalid), fault.Is(err, fault.TooLarge): // the transaction fails, too
		return false, nil
	default:
		return false, err
	}
}

// read reports whether an event has a marker, and whether the marker belongs to the transaction of the event. It
// returns errForeign if the marker belongs to another event with the same id.
func (m *markers) read(ctx context.Context, e *marked) (found, committed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, markerTime)
	defer cancel()
	item, err := m.store.Store.Get(ctx, state.GetRequest{Key: m.key(e.ID),
		ReadOptions: state.ReadOptions{Consistency: state.Strong, Metadata: m.metadata}})
	if err != nil || !item.Found() {
		return false, false, err
	}
	switch value := string(item.Value); {
	case value == committedMarker(e.Key, e.Event):
		return true, true, nil
	case value == markerDiscarded:
		return true, false, nil
	case strings.HasPrefix(value, markerCommitted):
		return true, false, errForeign{"it has the id of another event"}
	}
	return true, false, fault.New(fault.Corrupt, "pubsub.relay", "the key "+item.Key+" in state store "+m.store.Name+
		" has a value that is not of a marker (delete the key to discard its event)")
}

// remove removes the marker of an event that was published.
func (m *markers) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, markerTime)
	defer cancel()
	_, err := m.store.Store.Delete(ctx, state.DeleteRequest{Key: m.key(id), Consistency: state.Strong,
		Metadata: m.metadata})
	return err
}
