package topics

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"fmt"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// A transaction acknowledges a delivery by removing the parked record of the message. Before the transaction, Claim
// makes the leader store that record, as for a message that is delivered later. The removal names the revision of the
// record. A request that parks the message again or moves it to another topic also names the revision. So only one of
// these requests is applied.

const opAcknowledge = "topics.Acknowledge"

// Bounds of tokens.
const (
	tokenVersion = 1
	proofSize    = 16
	maxToken     = 4 << 10 // bytes in base64
)

// token identifies a delivery. Clients send it back, so the broker checks it like any other untrusted input.
type token struct {
	topic   Topic // without Store
	offset  uint64
	attempt uint64
	proof   string // see proofOf
}

// proofOf returns a hash of the stored value of a message. Tokens contain this hash. A client that knows only the
// message cannot compute the hash, because the stored value begins with the time at which the message was stored.
func proofOf(value []byte) string {
	sum := sha256.Sum256(value)
	return string(sum[:proofSize])
}

func (t *token) String() string {
	b := binary.AppendUvarint([]byte{tokenVersion}, uint64(t.topic.Group))
	b = binary.AppendUvarint(binary.AppendUvarint(b, t.offset), t.attempt)
	b = lenprefix.Append(lenprefix.Append(b, t.topic.Name), t.proof)
	return base64.RawURLEncoding.EncodeToString(b)
}

func parseToken(text string) (t token, ok bool) {
	if len(text) > maxToken {
		return t, false
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return t, false
	}
	r := lenprefix.Reader{Rest: b}
	ok = r.Byte() == tokenVersion
	gid := r.Uvarint()
	t.offset, t.attempt = r.Uvarint(), r.Uvarint()
	t.topic.Name, t.proof = r.Text(), r.Text()
	t.topic.Group = uint32(min(gid, 1<<32-1)) //nolint:gosec // bounded
	return t, ok && !r.Bad && len(r.Rest) == 0 && gid < 1<<32-1 && len(t.proof) == proofSize &&
		checkNames(opAcknowledge, t.topic.Name, "") == nil
}

// errSettled returns fault.DeliverySettled, for a token whose delivery cannot be acknowledged any more.
func errSettled(why string) error {
	return &fault.Error{Code: fault.DeliverySettled, Op: opAcknowledge,
		Msg:  "the message of the token " + why + "; nothing was written",
		Hint: "do not repeat the transaction: a message that is not settled comes again, with a new token"}
}

// Claim prepares a transaction that acknowledges a delivery. The transaction removes the parked record of the message.
// Claim stores this record if there is none, and returns its revision. The subscription keeps the message, and the
// number of attempts does not change.
//
// The attempt and the proof come from the token of the delivery (see proofOf). Claim returns fault.DeliverySettled in
// these cases:
//
//   - The message is settled.
//   - The message has failed since the delivery.
//   - No message with this offset and proof is stored.
//   - The consumer group does not exist.
func (k *Keeper) Claim(ctx context.Context, t Topic, group string, offset, attempt uint64, proof string) (
	revision uint64, err error) {
	if err := checkNames(opAcknowledge, t.Name, group); err != nil {
		return 0, err
	}
	w := &waiter{left: 1, done: make(chan struct{})}
	k.mu.Lock()
	c, err := k.claim(t, group, offset, attempt, proof, w)
	m, g := k.machine, k.group
	if err == nil {
		w.end(nil)
		k.advance(c)
		k.dropIdle(c)
	}
	k.mu.Unlock()
	if err != nil {
		return 0, err
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		return 0, fault.Wrap(ctx.Err(), opAcknowledge, "the message is not claimed yet")
	}
	if w.err == nil {
		w.err = g.Confirm(ctx)
	}
	if w.err != nil {
		return 0, w.err
	}
	v, err := m.Get(kv.TopicStore, t.parkedKey(group, offset), 0)
	if err != nil {
		return 0, err
	}
	p, ok := readParked(v.Value)
	if !v.Found || !ok || p.attempts+1 != attempt {
		return 0, errSettled("was settled meanwhile")
	}
	return v.Revision, nil
}

// claim checks that a delivery can be acknowledged. If the log has no parked record of the message, claim queues one to
// be stored, and makes the waiter w wait until the record is in the log. The caller holds k.mu.
func (k *Keeper) claim(t Topic, group string, offset, attempt uint64, proof string, w *waiter) (*consumer,
	error) {
	if err := k.lead(opAcknowledge); err != nil {
		return nil, err
	}
	v, err := k.machine.Get(kv.TopicStore, t.messageKey(offset), 0)
	if err != nil {
		return nil, err
	}
	if !v.Found || subtle.ConstantTimeCompare([]byte(proofOf(v.Value)), []byte(proof)) != 1 {
		return nil, errSettled("does not exist, or exists no more")
	}
	c, err := k.consumer(k.topic(t), group)
	if err != nil {
		return nil, err
	}
	if c == nil {
		return nil, errSettled("is not one of the consumer group " + group)
	}
	i, err := c.unsettled(k.machine, offset, k.group.Now())
	if err != nil {
		return nil, err
	}
	switch {
	case i == nil, i.over():
		return nil, errSettled("is settled")
	case i.attempts+1 != attempt:
		return nil, errSettled(fmt.Sprintf("is delivered for the %d. time by now, and the token is from the %d.",
			i.attempts+1, attempt))
	case i.pending != nil:
		w.add(i.pending)
	case !i.recorded:
		c.mark(i)
		i.pending = &settlement{offset: offset, kind: settlePark,
			parked: parked{attempts: i.attempts, at: i.at, key: i.key}}
		c.settled = append(c.settled, i.pending)
		w.add(i.pending)
	}
	return c, nil
}

// acknowledged reports whether a transaction has acknowledged a message, and thus removed its parked record. If so,
// acknowledged also settles the message in memory. The caller holds k.mu.
func (k *Keeper) acknowledged(c *consumer, i *item) (bool, error) {
	if !i.recorded {
		return false, nil
	}
	v, err := k.machine.Get(kv.TopicStore, c.t.parkedKey(c.group, i.offset), 0)
	if err != nil || v.Found {
		return false, err
	}
	c.finish(i, &settlement{kind: settleDone})
	return true, nil
}

// acknowledgement is the effect that acknowledges a delivery.
type acknowledgement struct {
	token
	broker   *Broker
	group    string
	revision uint64 // of the parked record
	settled  error  // the reason why the delivery cannot be acknowledged, or nil
}

// StageAck implements pubsub.Stager.
func (b *Broker) StageAck(ctx context.Context, r pubsub.AckRequest) (state.Effect, error) {
	if b.isClosed() {
		return nil, errClosed(opAcknowledge)
	}
	t, ok := parseToken(r.Token)
	if !ok {
		return nil, &fault.Error{Code: fault.Invalid, Op: opAcknowledge, Msg: "the token of the delivery is not one " +
			"that this broker has made", Hint: "send the value of Quorate-Ack of the delivery unchanged"}
	}
	groups, err := b.access.Groups(ctx)
	if err != nil {
		return nil, err
	}
	if t.topic.Store = b.store; t.topic.Group >= groups || r.Allowed != nil && !r.Allowed(t.topic.Name) {
		return nil, errSettled("does not exist for this application")
	}
	e := &acknowledgement{token: t, broker: b, group: r.Group}
	c := call{what: callClaim, join: Join{Topic: t.topic, Group: r.Group}, offset: t.offset, attempt: t.attempt,
		proof: t.proof}
	out, _, err := b.access.Ask(ctx, t.topic.Group, Method, c.append())
	switch {
	case fault.Is(err, fault.DeliverySettled):
		// No error yet: if the transaction was applied before and is repeated with its request id, it gets the result
		// of that time.
		e.settled = err
		return e, nil
	case err != nil:
		return nil, err
	}
	reader := lenprefix.Reader{Rest: out}
	if e.revision = reader.Uvarint(); reader.Bad {
		return nil, fault.New(fault.Corrupt, opAcknowledge, "the leader has answered with something else")
	}
	return e, nil
}

// Effect implements state.Effect.
func (e *acknowledgement) Effect() string {
	return "the acknowledgement of a message of the topic " + fault.Shorten(e.topic.Name, 128)
}

// Ops implements Effect.
func (e *acknowledgement) Ops(gid uint32) ([]command.Op, error) {
	if e.topic.Group != gid {
		return nil, &fault.Error{Code: fault.Invalid, Op: opAcknowledge,
			Msg: fmt.Sprintf("the message of the topic %s is in Raft group %d and the state is in Raft group %d, so "+
				"they cannot change in one entry", fault.Shorten(e.topic.Name, 128), e.topic.Group, gid),
			Hint: "run the cluster with one partition, publish the message with a transaction on state of the same " +
				"application, or acknowledge by the answer to the delivery"}
	}
	op := command.Op{Kind: command.OpDelete, Cond: command.CondRevision, Revision: e.revision, Store: kv.TopicStore,
		Key: e.topic.parkedKey(e.group, e.offset)}
	if e.settled != nil {
		op.Kind, op.Cond, op.Revision = command.OpCheck, command.CondNever, 0
	}
	return []command.Op{op}, nil
}

// Refused implements Effect.
func (e *acknowledgement) Refused(_ uint32, key string) error {
	if key != e.topic.parkedKey(e.group, e.offset) {
		return nil
	}
	if e.settled != nil {
		return e.settled
	}
	return errSettled("was settled meanwhile")
}

// Unsettled implements Effect. It makes the subscriptions of this node ignore the application's answer to the delivery.
// As docs/pubsub.md requires, this answer is a success even if the transaction was refused. Nothing was stored then, so
// the answer must not settle the message.
func (e *acknowledgement) Unsettled() { e.broker.refused(&e.token, e.group) }

// refused tells the subscriptions of this node that a transaction with a token was refused.
func (b *Broker) refused(t *token, group string) {
	b.mu.Lock()
	l := b.links[t.topic.Group]
	b.mu.Unlock()
	if l == nil {
		return
	}
	for _, s := range l.subscriptions() {
		if s.topic == t.topic.Name && s.group == group {
			s.refuse(refOf(t.topic.Group, t.offset), t.String())
		}
	}
}

// Applied implements Effect.
func (e *acknowledgement) Applied(uint32) {}
