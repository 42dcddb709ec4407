package api

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/quorate/quorate/component/state"
)

// MetadataProjection is the metadata key that makes an operation of a transaction a projection. A projection is not
// stored. Its value becomes the data of the event that another operation with the same key publishes.
const MetadataProjection = "outbox.projection"

// Topics lets the transactions of state stores publish events and acknowledge deliveries. Package api/pubsub implements
// it. Implementations are safe for concurrent use.
type Topics interface {
	// Outbox prepares the events of a transaction. Its errors are those of a publish.
	Outbox(ctx context.Context, r *OutboxRequest) (Outbox, *Error)
	// Acknowledge returns the effects that acknowledge deliveries. Its errors have the codes of a transaction of the
	// store.
	Acknowledge(ctx context.Context, store *state.Instance, tokens []string) ([]state.Effect, error)
}

// MaxAcks is how many deliveries a transaction may acknowledge.
const MaxAcks = 16

// MetadataAck is the metadata key with which a transaction acknowledges deliveries. The value lists the tokens of the
// deliveries. Clients use this key if they cannot send the header Quorate-Ack.
const MetadataAck = "quorateAck"

// acknowledge adds the acknowledgements of deliveries to a transaction.
func (t *transaction) acknowledge(ctx context.Context, r *TransactRequest, request *state.TransactRequest) *Error {
	var tokens []string
	given := r.Acks
	if text, ok := r.StoreMetadata[MetadataAck]; ok {
		given = append(slices.Clip(given), text)
	}
	for _, text := range given {
		if strings.Trim(text, ", ") == "" { // otherwise the values would be stored without the acknowledgement
			return malformed("Quorate-Ack is present and has no token: send the value of the delivery, or omit the " +
				"header or metadata")
		}
		for one := range strings.SplitSeq(text, ",") {
			if one = strings.TrimSpace(one); one != "" && !slices.Contains(tokens, one) {
				tokens = append(tokens, one)
			}
		}
	}
	switch {
	case len(tokens) == 0:
		return nil
	case len(tokens) > MaxAcks:
		return malformed("a transaction may acknowledge at most " + strconv.Itoa(MaxAcks) + " deliveries")
	case len(request.Operations) == 0:
		return malformed("a transaction that acknowledges a delivery needs an operation (to acknowledge without one, " +
			"answer the delivery)")
	case t.op != opTransact || t.state.topics == nil || !t.inst.Effects:
		return &Error{Kind: Malformed, Code: CodeMalformed, Details: Details{Reason: ReasonUnsupported},
			Message: "transactions of state store " + t.inst.Name + " cannot acknowledge deliveries (use a store of " +
				"type state.raft and a pubsub of type pubsub.raft)"}
	}
	effects, err := t.state.topics.Acknowledge(ctx, t.inst, tokens)
	if err != nil {
		return t.op.failed(err, t.inst.Name, "", "")
	}
	request.Effects = append(request.Effects, effects...)
	return nil
}

// OutboxRequest has the changes of a transaction for which events are published.
type OutboxRequest struct {
	Store    *state.Instance   // store with a configured Outbox
	Metadata map[string]string // metadata of the transaction as a whole; nil = none
	Changes  []Change
	Header   http.Header // has traceparent and tracestate of the caller; may be nil
}

// Change is a value that a transaction sets.
type Change struct {
	Data        []byte
	JSON        bool              // Data is JSON text
	ContentType string            // content type of Data; empty = none was given
	Metadata    map[string]string // metadata of the operation, become attributes of the event; may be nil
}

// Outbox is the result of preparing the events of one transaction: what to add to the transaction, and a function to
// call at its end.
type Outbox struct {
	Effects    []state.Effect    // effects to add to the transaction
	Operations []state.Operation // operations to add to the transaction
	Ended      func(err error)   // called with the outcome of the transaction; nil = not needed
}

// Done calls Ended with the outcome of the transaction, unless Ended is nil. err is nil if the transaction succeeded.
func (o *Outbox) Done(err error) {
	if o.Ended != nil {
		o.Ended(err)
	}
}

// Publish sets the topics in which transactions publish events and acknowledge deliveries, and returns s. It must be
// called before the first request.
func (s *State) Publish(topics Topics) *State {
	s.topics = topics
	return s
}

// changes returns the values that a transaction sets and for which the outbox of the store publishes events. The result
// is empty if the store has no outbox. changes also removes the projections from r and request, because they are not
// stored.
func (t *transaction) changes(r *TransactRequest, request *state.TransactRequest) []Change {
	if t.op != opTransact || t.inst.Outbox == nil || t.state.topics == nil {
		return nil
	}
	projections := map[string]Change{}
	kept, operations := request.Operations[:0], []Operation(nil)
	var sets []int // indexes into kept
	for i := range request.Operations {
		given, w := &r.Operations[i], &request.Operations[i]
		set := w.Kind == state.Upsert
		if set && truthy(given.Metadata[MetadataProjection]) {
			projections[w.Key] = changeOf(given, &w.Write)
			continue
		}
		if set {
			sets = append(sets, len(kept))
		}
		kept, operations = append(kept, *w), append(operations, *given)
	}
	request.Operations, r.Operations = kept, operations
	out := make([]Change, len(sets))
	for n, i := range sets {
		c := changeOf(&operations[i], &kept[i].Write)
		if p, ok := projections[kept[i].Key]; ok {
			c.Data, c.JSON, c.ContentType = p.Data, p.JSON, p.ContentType
		}
		out[n] = c
	}
	return out
}

// publish prepares the events for the given changes, and adds to request what the store must write for them. Call it
// after all other checks of the transaction, because it may already send the events to an internal topic.
func (t *transaction) publish(ctx context.Context, r *TransactRequest, changes []Change,
	request *state.TransactRequest) (Outbox, *Error) {
	if len(changes) == 0 {
		return Outbox{}, nil
	}
	out, failure := t.state.topics.Outbox(ctx, &OutboxRequest{Store: t.inst, Metadata: r.StoreMetadata,
		Header: r.Header, Changes: changes})
	request.Effects = slices.Concat(out.Effects, request.Effects)
	request.Operations = append(request.Operations, out.Operations...)
	return out, failure
}

// outboxLate returns the error for a transaction that took too long: its events were discarded before it could commit,
// so the store refused the transaction.
func (t *transaction) outboxLate(cause error) *Error {
	text := "the transaction of state store " + t.inst.Name + " took so long that its events were discarded; nothing " +
		"was stored (repeat it)"
	return &Error{Kind: Failed, Code: CodePubSubOutbox, Message: text, Cause: cause,
		Details: Details{Reason: ReasonOutbox, Metadata: Attributes("error", text)}}
}

func changeOf(o *Operation, w *state.Write) Change {
	c := Change{Data: w.Value, JSON: o.JSON && w.ContentType != state.OctetStream, Metadata: o.Metadata}
	for name, value := range w.Metadata {
		if strings.EqualFold(name, state.MetadataContentType) { // matches at most once, as convert has checked
			c.ContentType = value
		}
	}
	return c
}

// truthy reports whether Dapr takes text for true, such as "yes" or "on".
func truthy(text string) bool {
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "y", "yes", "true", "t", "on", "1":
		return true
	}
	return false
}
