package mongodb_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// storage has the documents of the fake server. A transaction reads the documents as of its start. It fails if it
// writes a document that another transaction has written since then.
type storage struct {
	sync.Mutex
	free    *sync.Cond // signals that a transaction has ended
	docs    map[string]bson.D
	changed map[string]int64 // value of now at the last write of each document
	now     int64            // counts the writes
	open    map[string]*transaction
	leaps   time.Duration
}

type transaction struct {
	docs    map[string]bson.D
	begun   int64
	written map[string]bool
}

func newStorage() *storage {
	s := &storage{docs: map[string]bson.D{}, changed: map[string]int64{}, open: map[string]*transaction{}}
	s.free = sync.NewCond(&s.Mutex)
	return s
}

// Now returns the time of the server.
func (s *storage) Now() time.Time {
	s.Lock()
	defer s.Unlock()
	return time.Now().Add(s.leaps)
}

// leap advances the clock of the server.
func (s *storage) leap(d time.Duration) {
	s.Lock()
	defer s.Unlock()
	s.leaps += d
}

func (s *storage) abortAll() {
	s.Lock()
	defer s.Unlock()
	clear(s.open)
	s.free.Broadcast()
}

// transactionOf returns the transaction of a command, and creates it at the first command. The caller holds the lock.
func (s *storage) transactionOf(body bson.D) *transaction {
	if field(body, "autocommit") == nil {
		return nil
	}
	id := fmt.Sprint(field(body, "lsid"), field(body, "txnNumber"))
	if field(body, "startTransaction") == true {
		s.open[id] = &transaction{docs: maps.Clone(s.docs), begun: s.now, written: map[string]bool{}}
	}
	return s.open[id]
}

func (s *storage) finish(command string, body bson.D) bson.D {
	s.Lock()
	defer s.Unlock()
	tx := s.transactionOf(body)
	if tx == nil {
		return refusal(251, "TransientTransactionError")
	}
	delete(s.open, fmt.Sprint(field(body, "lsid"), field(body, "txnNumber")))
	if command == "commitTransaction" {
		s.now++
		for key := range tx.written {
			s.store(s.docs, key, tx.docs[key])
			s.changed[key] = s.now
		}
	}
	s.free.Broadcast()
	return bson.D{{Key: "ok", Value: 1}}
}

func (s *storage) store(docs map[string]bson.D, key string, doc bson.D) {
	if doc == nil {
		delete(docs, key)
		return
	}
	docs[key] = doc
}

func (s *storage) find(body bson.D) bson.D {
	s.Lock()
	defer s.Unlock()
	docs := s.docs
	if tx := s.transactionOf(body); tx != nil {
		docs = tx.docs
	}
	filter, _ := field(body, "filter").(bson.D)
	keys := slices.Sorted(maps.Keys(docs))
	if key, ok := field(filter, "_id").(string); ok {
		keys = []string{key}
	}
	batch := bson.A{}
	limit := number(field(body, "limit"))
	for _, key := range keys {
		doc, ok := docs[key]
		if ok && s.matches(doc, filter) && (limit == 0 || int64(len(batch)) < limit) {
			batch = append(batch, projected(doc, field(body, "projection")))
		}
	}
	return bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)},
		{Key: "ns", Value: "d.c"}, {Key: "firstBatch", Value: batch}}}}
}

// projected returns the key of doc and the fields of a projection, or doc without a projection.
func projected(doc bson.D, projection any) bson.D {
	fields, ok := projection.(bson.D)
	if !ok {
		return doc
	}
	var out bson.D
	for _, e := range doc {
		if e.Key == "_id" || field(fields, e.Key) != nil {
			out = append(out, e)
		}
	}
	return out
}

// write executes the statements of an update or delete command, and returns the answer.
func (s *storage) write(command string, body bson.D) bson.D {
	s.Lock()
	defer s.Unlock()
	tx := s.transactionOf(body)
	if tx == nil && field(body, "autocommit") != nil {
		return refusal(251, "TransientTransactionError")
	}
	reply := bson.D{{Key: "ok", Value: 1}}
	var n, modified int32
	var upserted, failures bson.A
	statements, _ := field(body, command+"s").(bson.A)
	for i, one := range statements {
		filter, _ := field(one.(bson.D), "q").(bson.D)
		key := field(filter, "_id").(string)
		for tx == nil && s.locked(key, nil) {
			s.free.Wait()
		}
		docs := s.docs
		if tx != nil {
			if s.locked(key, tx) || s.changed[key] > tx.begun {
				delete(s.open, fmt.Sprint(field(body, "lsid"), field(body, "txnNumber")))
				s.free.Broadcast()
				return refusal(112, "TransientTransactionError")
			}
			docs = tx.docs
		}
		before, exists := docs[key]
		fits := exists && s.matches(before, filter)
		upsert := command == "update" && field(one.(bson.D), "upsert") == true
		var after bson.D
		switch {
		case !fits && exists && upsert:
			failures = append(failures, bson.D{{Key: "index", Value: i}, {Key: "code", Value: 11000},
				{Key: "errmsg", Value: "E11000 duplicate key"}})
			continue
		case !fits && !upsert:
			continue
		case command == "update":
			if !exists {
				before = bson.D{{Key: "_id", Value: key}}
				upserted = append(upserted, bson.D{{Key: "index", Value: i}, {Key: "_id", Value: key}})
			}
			switch u := field(one.(bson.D), "u").(type) {
			case bson.A:
				after = s.updated(before, u)
			case bson.D:
				after = u
			}
			if exists && fmt.Sprint(before) != fmt.Sprint(after) {
				modified++
			}
		}
		n++
		s.store(docs, key, after)
		if tx != nil {
			tx.written[key] = true
			continue
		}
		s.now++
		s.changed[key] = s.now
	}
	reply = append(reply, bson.E{Key: "n", Value: n}, bson.E{Key: "nModified", Value: modified})
	if upserted != nil {
		reply = append(reply, bson.E{Key: "upserted", Value: upserted})
	}
	if failures != nil {
		reply = append(reply, bson.E{Key: "writeErrors", Value: failures})
	}
	return reply
}

// locked reports whether a transaction other than except has written the document with the given key.
func (s *storage) locked(key string, except *transaction) bool {
	for _, tx := range s.open {
		if tx != except && tx.written[key] {
			return true
		}
	}
	return false
}

func (s *storage) updated(doc bson.D, pipeline bson.A) bson.D {
	for _, stage := range pipeline {
		e := stage.(bson.D)[0]
		if e.Key != "$replaceWith" {
			panic("the fake does not know " + e.Key)
		}
		doc = s.eval(e.Value, doc).(bson.D)
	}
	return doc
}

func field(d bson.D, name string) any {
	for _, e := range d {
		if e.Key == name {
			return e.Value
		}
	}
	return nil
}

// matches reports whether a document matches a filter.
func (s *storage) matches(doc, filter bson.D) bool {
	for _, e := range filter {
		value := field(doc, e.Key)
		ok := false
		switch want := e.Value.(type) {
		case bson.A: // $or
			ok = slices.ContainsFunc(want, func(one any) bool { return s.matches(doc, one.(bson.D)) })
		case bson.D:
			if e.Key == "$expr" {
				ok = s.eval(want, doc) == true
				break
			}
			ok = !slices.ContainsFunc(want, func(op bson.E) bool { return !compares(op.Key, value, op.Value) })
		default:
			ok = compare(value, want) == 0
		}
		if !ok {
			return false
		}
	}
	return true
}

// eval returns the value of an expression.
func (s *storage) eval(expression any, doc bson.D) any {
	switch e := expression.(type) {
	case string:
		switch {
		case e == "$$NOW":
			return bson.NewDateTimeFromTime(time.Now().Add(s.leaps))
		case e == "$$ROOT":
			return doc
		case strings.HasPrefix(e, "$"):
			return field(doc, e[1:])
		}
	case bson.D:
		if strings.HasPrefix(e[0].Key, "$") {
			return s.operate(e[0].Key, e[0].Value, doc)
		}
		out := bson.D{}
		for _, member := range e {
			out = append(out, bson.E{Key: member.Key, Value: s.eval(member.Value, doc)})
		}
		return out
	}
	return expression
}

func (s *storage) operate(op string, argument any, doc bson.D) any {
	if op == "$literal" {
		return argument
	}
	var args []any
	for _, a := range argument.(bson.A) {
		args = append(args, s.eval(a, doc))
	}
	switch op {
	case "$and":
		return !slices.Contains(args, false)
	case "$or":
		return slices.Contains(args, true)
	case "$cond":
		if args[0] == true {
			return args[1]
		}
		return args[2]
	case "$add":
		return args[0].(bson.DateTime) + bson.DateTime(number(args[1]))
	}
	return compares(op, args[0], args[1])
}

func compares(op string, a, b any) bool {
	switch op {
	case "$in":
		return slices.ContainsFunc(b.(bson.A), func(one any) bool { return compare(a, one) == 0 })
	case "$gt":
		return compare(a, b) > 0
	case "$gte":
		return compare(a, b) >= 0
	case "$lt":
		return compare(a, b) < 0
	case "$lte":
		return compare(a, b) <= 0
	}
	panic("the fake does not know " + op)
}

// compare orders values as MongoDB does: null, texts, times.
func compare(a, b any) int {
	rank := func(v any) int {
		return slices.Index([]string{"<nil>", "string", "bson.DateTime"}, fmt.Sprintf("%T", v))
	}
	if c := cmp.Compare(rank(a), rank(b)); c != 0 || a == nil {
		return c
	}
	if text, ok := a.(string); ok {
		return strings.Compare(text, b.(string))
	}
	return cmp.Compare(a.(bson.DateTime), b.(bson.DateTime))
}

func number(v any) int64 {
	switch n := v.(type) {
	case int32:
		return int64(n)
	case int64:
		return n
	}
	return 0
}
