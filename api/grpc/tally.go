package grpc

import (
	"reflect"
	"sync"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/workflow/turn"
)

// The bytes that decoding allocates, rounded up.
const (
	decodedElement = 32  // for the slot of an element in a list, beside the element itself
	decodedRequest = 512 // for an element that becomes a read or a write
	decodedEntry   = 256 // for an entry of a map
)

// maxNesting is the maximum depth of nested messages.
const maxNesting = 64

// tally counts the elements of an encoded message without decoding it.
type tally struct {
	state  *api.State
	shapes *sync.Map // of *shape, by protoreflect.FullName
	memory int64     // bytes that decoding takes, not counting copies of the message

	store string // name of the store: the value of field 1 of the outermost message
	depth int
}

// counted returns an error if a list is too long. n is the number of its elements, and store is the name of the store
// in the request.
type counted func(s *api.State, store string, n int) error

// lists maps each list field that has a limit of its own to the function that checks this limit. A limit that depends
// on the store works only for a field of the outermost message, because only this message has the name of the store.
var lists = map[protoreflect.FullName]counted{
	field(&protos.CompleteWorkflowAction{}, "carryoverEvents"): func(_ *api.State, _ string, n int) error {
		if n > turn.MaxCarried {
			return api.Exceeded("too many events that a workflow carries over", n, turn.MaxCarried)
		}
		return nil
	},
	field(&runtimev1.SaveStateRequest{}, "states"): func(s *api.State, _ string, n int) error {
		return s.CheckItems(n)
	},
	field(&runtimev1.DeleteBulkStateRequest{}, "states"): func(s *api.State, _ string, n int) error {
		return s.CheckDeletes(n)
	},
	field(&runtimev1.GetBulkStateRequest{}, "keys"): func(s *api.State, _ string, n int) error {
		return s.CheckKeys(n)
	},
	field(&runtimev1.ExecuteStateTransactionRequest{}, "operations"): func(s *api.State, store string, n int) error {
		return s.CheckOperations(store, n)
	},
	field(&runtimev1.ExecuteActorStateTransactionRequest{}, "operations"): func(s *api.State, _ string, n int) error {
		return s.CheckActorOperations(n)
	},
}

func field(m protoreflect.ProtoMessage, name protoreflect.Name) protoreflect.FullName {
	return m.ProtoReflect().Descriptor().Fields().ByName(name).FullName()
}

// shape describes a message type for the tally.
type shape struct {
	memory int64  // bytes of a decoded message without its elements
	parts  []part // by field number; empty for fields that cost nothing
}

// part describes one field of a message type.
type part struct {
	kind    kind
	list    bool
	message protoreflect.MessageDescriptor // of the elements, if they are messages
	check   counted                        // nil = the common limit of lists
}

type kind uint8

const (
	ofNothing  kind = iota // costs nothing beyond its own bytes
	ofValues               // a list with one value per element on the wire
	ofNumbers              // a packed list of numbers
	ofEntries              // a map
	ofMessages             // a message or a list of messages
)

// maxNumber bounds the field numbers that are counted. The API has only smaller ones.
const maxNumber = 64

// shapeOf returns the shape of a message type. It caches shapes in the map.
func shapeOf(shapes *sync.Map, d protoreflect.MessageDescriptor) *shape {
	if s, ok := shapes.Load(d.FullName()); ok {
		return s.(*shape)
	}
	s := &shape{memory: 256} // for unknown types; more than any message of the API
	if t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName()); err == nil {
		s.memory = int64(reflect.TypeOf(t.Zero().Interface()).Elem().Size())
	}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		p := part{list: f.IsList(), check: lists[f.FullName()]}
		switch {
		case f.Number() >= maxNumber:
			continue
		case f.IsMap():
			p.kind = ofEntries
		case f.Message() != nil:
			p.kind, p.message = ofMessages, f.Message()
		case f.IsList() && f.IsPacked():
			p.kind = ofNumbers
		case f.IsList():
			p.kind = ofValues
		}
		for len(s.parts) <= int(f.Number()) {
			s.parts = append(s.parts, part{})
		}
		s.parts[f.Number()] = p
	}
	shapes.Store(d.FullName(), s)
	return s
}

// message counts the elements of an encoded message and of all messages nested in it. It returns an *api.Error if there
// are too many elements or too many levels. At the first invalid byte it stops counting without an error, because the
// decoder will reject the message.
func (t *tally) message(d protoreflect.MessageDescriptor, b []byte) error {
	s := shapeOf(t.shapes, d)
	t.memory += s.memory
	if len(b) == 0 {
		return nil
	}
	if t.depth++; t.depth > maxNesting {
		return api.MalformedRequest("the message is nested too deeply")
	}
	defer func() { t.depth-- }()
	var counts [maxNumber]int
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			break
		}
		size := protowire.ConsumeFieldValue(num, typ, b[n:])
		if size < 0 {
			break
		}
		value := b[n : n+size]
		b = b[n+size:]
		if int(num) >= len(s.parts) {
			continue
		}
		counts[num]++
		p := &s.parts[num]
		if err := t.field(p, num, typ, value); err != nil {
			return err
		}
		if n := counts[num]; n > checkEvery && n%checkEvery == 1 {
			if err := t.check(p, n, b); err != nil {
				return err
			}
		}
	}
	for num := range s.parts {
		if err := t.check(&s.parts[num], counts[num], nil); err != nil {
			return err
		}
	}
	return nil
}

// checkEvery is the number of elements of a list after which its limit is checked again. A list that is too long is
// therefore refused early. A message of 4 MiB can have two million elements.
const checkEvery = 1_000

func (t *tally) field(p *part, num protowire.Number, typ protowire.Type, value []byte) error {
	if typ == protowire.BytesType {
		value, _ = protowire.ConsumeBytes(value)
	}
	if p.check != nil {
		t.memory += decodedRequest
	}
	switch p.kind {
	case ofNothing:
		if num == 1 && t.depth == 1 {
			t.store = string(value)
		}
	case ofValues:
		t.memory += decodedElement
	case ofNumbers:
		t.memory += 8 * int64(len(value)) // each number takes at least one byte on the wire
	case ofEntries:
		t.memory += decodedEntry
	case ofMessages:
		t.memory += decodedElement
		if typ == protowire.BytesType {
			return t.message(p.message, value)
		}
	}
	return nil
}

// check returns an error if n elements are too many for a field. Some limits depend on the store. If the name of the
// store has not been read yet, check searches for it in rest, the unread part of the message.
func (t *tally) check(p *part, n int, rest []byte) error {
	switch {
	case p.kind == ofEntries:
		return api.CheckMetadata(n)
	case p.check != nil:
		if t.depth == 1 && t.store == "" {
			t.store = text(rest, 1)
		}
		return p.check(t.state, t.store, n)
	case p.list && p.kind != ofNumbers:
		return api.CheckElements(n)
	}
	return nil
}

// text returns the value of the string field num, or "" if the message has none.
func text(b []byte, num protowire.Number) string {
	for len(b) > 0 {
		at, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			break
		}
		if at == num && typ == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(b[n:])
			return string(value)
		}
		size := protowire.ConsumeFieldValue(at, typ, b[n:])
		if size < 0 {
			break
		}
		b = b[n+size:]
	}
	return ""
}
