package inmemory

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// replyLife and maxReplies limit the stored results. replyLife is the time in milliseconds for which a result is
// stored. maxReplies is the maximum number of stored results.
const (
	replyLife  = int64(10 * time.Minute / time.Millisecond)
	maxReplies = 100_000
)

// replies stores the results of requests with a request id from the client. A retry with the same id gets the same
// result and changes nothing. The results of failed requests are not stored. The zero value is empty.
type replies struct {
	byID  map[string]reply
	order []replyID // oldest first
}

type reply struct {
	digest [sha256.Size]byte
	etags  []string
	at     int64
}

type replyID struct {
	name   string // scope and the client's id; empty = none was given
	digest [sha256.Size]byte
	at     int64
}

// identify returns the id under which the result of a request is stored. The id contains the prefix of the stored keys,
// because two applications may use the same request id.
func identify(requestID string, ops []state.Operation) replyID {
	if requestID == "" {
		return replyID{}
	}
	var scope string
	if len(ops) > 0 {
		scope, _, _ = strings.Cut(ops[0].Key, state.Separator)
	}
	return replyID{name: scope + state.Separator + requestID, digest: digest(ops)}
}

// recall returns the stored result of a request, or nil if there is none. If the client has used the request id for
// other operations, recall returns fault.Invalid, because their result would be wrong for this request.
func (r *replies) recall(id replyID, now int64) ([]string, error) {
	known, ok := r.byID[id.name]
	switch {
	case !ok || id.name == "" || known.at+replyLife <= now:
		return nil, nil
	case known.digest != id.digest:
		return nil, &fault.Error{Code: fault.Invalid, Op: "inmemory.Store",
			Msg:  "the request id was used for another request",
			Hint: "give every request an id of its own"}
	}
	return known.etags, nil
}

func (r *replies) remember(id replyID, etags []string, now int64) {
	if id.name == "" {
		return
	}
	if r.byID == nil {
		r.byID = map[string]reply{}
	}
	if len(r.order) >= maxReplies {
		r.drop()
	}
	id.at = now
	r.byID[id.name] = reply{digest: id.digest, etags: etags, at: now}
	r.order = append(r.order, id)
}

// forget drops results that are too old.
func (r *replies) forget(now int64) {
	for len(r.order) > 0 && r.order[0].at+replyLife <= now {
		r.drop()
	}
}

func (r *replies) drop() {
	oldest := r.order[0]
	r.order = r.order[1:]
	// The id may have been used again after its time was over.
	if r.byID[oldest.name].at == oldest.at {
		delete(r.byID, oldest.name)
	}
}

// digest returns a hash of the operations of a request. The length of each field is hashed before the field, so that
// the boundaries between fields are unambiguous.
func digest(ops []state.Operation) [sha256.Size]byte {
	h := sha256.New()
	part := func(b []byte) {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(b)))
		h.Write(size[:]) //nolint:errcheck // a hash does not fail
		h.Write(b)       //nolint:errcheck // a hash does not fail
	}
	for i := range ops {
		op := &ops[i]
		part([]byte{byte(op.Kind), byte(op.Concurrency)})
		part([]byte(op.Key))
		part(op.Value)
		part([]byte(op.ContentType))
		part([]byte(op.ETag))
		part(binary.BigEndian.AppendUint64(nil, uint64(op.TTL.Seconds)))
		at := ""
		if op.TTL.At != nil {
			at = op.TTL.At.UTC().Format(time.RFC3339Nano)
		}
		part([]byte(at))
	}
	return [sha256.Size]byte(h.Sum(nil))
}
