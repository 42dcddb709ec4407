package mongodb_test

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/quorate/quorate/component/state/statetest"
)

// server is a fake of a MongoDB server with one collection. It implements the wire protocol, and the commands and
// operators that the store sends; it refuses all others. Tests with it verify the requests of the store and how the
// store handles answers. They do not verify the behaviour of MongoDB.
type server struct {
	statetest.Listener
	*storage
	t          testing.TB
	standalone bool
	secondary  bool
	tls        *tls.Config // nil = plain TCP

	mu       sync.Mutex
	faults   map[string]func(body bson.D) bson.D // by command; see fail
	commands []bson.D                            // received commands, without greetings
}

// hang is an answer in a test. It means that the server sends no answer.
var hang = bson.D{{Key: "hang", Value: true}} //nolint:gochecknoglobals // compared by its first key

// cut is an answer in a test. It means that the server closes the connection.
var cut = bson.D{{Key: "cut", Value: true}} //nolint:gochecknoglobals // compared by its first key

// start starts a server that ends with the test.
func start(t testing.TB) *server {
	t.Helper()
	s := &server{t: t, storage: newStorage(), faults: map[string]func(bson.D) bson.D{}}
	s.run()
	t.Cleanup(s.kill)
	return s
}

// run accepts connections.
func (s *server) run() {
	s.t.Helper()
	s.Start(s.t, func(c net.Conn) {
		if s.tls != nil {
			c = tls.Server(c, s.tls)
		}
		s.serve(c)
	})
}

// kill ends the server with all its connections. The stored documents stay.
func (s *server) kill() {
	s.Close()
	s.abortAll()
	s.Wait()
}

// fail sets a function that answers a command. If the function is nil or returns nil, the server executes the
// command.
func (s *server) fail(command string, with func(body bson.D) bson.D) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[command] = with
}

// answers returns a function for fail that always returns reply.
func answers(reply bson.D) func(bson.D) bson.D { return func(bson.D) bson.D { return reply } }

// refusal returns an error answer.
func refusal(code int32, labels ...string) bson.D {
	d := bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: code}, {Key: "errmsg", Value: "the fake refuses"}}
	if len(labels) > 0 {
		d = append(d, bson.E{Key: "errorLabels", Value: labels})
	}
	return d
}

// Operation codes of the wire protocol.
const (
	opReply = 1
	opQuery = 2004
	opMsg   = 2013
)

func (s *server) serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	for {
		var header [16]byte
		if _, err := io.ReadFull(in, header[:]); err != nil {
			return
		}
		payload := make([]byte, binary.LittleEndian.Uint32(header[:])-16)
		if _, err := io.ReadFull(in, payload); err != nil {
			return
		}
		code := binary.LittleEndian.Uint32(header[12:])
		reply := s.handle(parse(code, payload))
		if len(reply) == 1 && reply[0].Key == "hang" {
			_, _ = io.Copy(io.Discard, in) // until the client closes the connection
			return
		}
		if len(reply) == 1 && reply[0].Key == "cut" {
			return
		}
		if len(reply) == 1 && reply[0].Key == "raw" {
			_, _ = io.WriteString(c, reply[0].Value.(string))
			return
		}
		if _, err := c.Write(message(code, header[4:8], reply)); err != nil {
			return
		}
	}
}

// parse returns the body of a message, with its sequences of documents as arrays.
func parse(code uint32, payload []byte) bson.D {
	if code == opQuery {
		name := slices.Index(payload[4:], 0)
		return decoded(payload[4+name+1+8:])
	}
	var body bson.D
	for rest := payload[4:]; len(rest) > 0; {
		kind := rest[0]
		size := binary.LittleEndian.Uint32(rest[1:])
		section := rest[1 : 1+size]
		rest = rest[1+size:]
		if kind == 0 {
			body = append(decoded(section), body...)
			continue
		}
		end := slices.Index(section[4:], 0) + 4
		var all bson.A
		for list := section[end+1:]; len(list) > 0; list = list[binary.LittleEndian.Uint32(list):] {
			all = append(all, decoded(list))
		}
		body = append(body, bson.E{Key: string(section[4:end]), Value: all})
	}
	return body
}

func decoded(raw []byte) bson.D {
	var d bson.D
	if err := bson.Unmarshal(raw[:binary.LittleEndian.Uint32(raw)], &d); err != nil {
		panic(err)
	}
	return d
}

// message returns the bytes of an answer, in the form that the request used.
func message(code uint32, request []byte, reply bson.D) []byte {
	raw, err := bson.Marshal(reply)
	if err != nil {
		panic(err)
	}
	answer, head := uint32(opMsg), make([]byte, 5) // flags, kind of section
	if code == opQuery {
		answer, head = opReply, make([]byte, 20)
		head[16] = 1 // number of documents
	}
	out := make([]byte, 16, 16+len(head)+len(raw))
	binary.LittleEndian.PutUint32(out, uint32(cap(out))) //nolint:gosec // small
	copy(out[8:], request)
	binary.LittleEndian.PutUint32(out[12:], answer)
	return append(append(out, head...), raw...)
}

// handle executes a command and returns the answer.
func (s *server) handle(body bson.D) bson.D {
	command := body[0].Key
	s.mu.Lock()
	fault := s.faults[command]
	if !slices.Contains([]string{"isMaster", "ismaster", "hello", "endSessions"}, command) {
		s.commands = append(s.commands, body)
	}
	s.mu.Unlock()
	if fault != nil {
		if reply := fault(body); reply != nil {
			return reply
		}
	}
	switch strings.ToLower(command) {
	case "ismaster", "hello":
		return s.hello()
	case "ping", "endsessions", "createindexes", "killcursors":
		return bson.D{{Key: "ok", Value: 1}}
	case "find":
		return s.find(body)
	case "update", "delete":
		return s.write(command, body)
	case "committransaction", "aborttransaction":
		return s.finish(command, body)
	}
	return refusal(59)
}

func (s *server) hello() bson.D {
	d := bson.D{
		{Key: "helloOk", Value: true}, {Key: "isWritablePrimary", Value: !s.secondary},
		{Key: "ismaster", Value: !s.secondary}, {Key: "secondary", Value: s.secondary},
		{Key: "maxBsonObjectSize", Value: 16 << 20}, {Key: "maxMessageSizeBytes", Value: 48000000},
		{Key: "maxWriteBatchSize", Value: 100000}, {Key: "localTime", Value: time.Now()},
		{Key: "minWireVersion", Value: 0}, {Key: "maxWireVersion", Value: 25}, {Key: "ok", Value: 1},
		{Key: "logicalSessionTimeoutMinutes", Value: 30},
	}
	if !s.standalone {
		d = append(d, bson.E{Key: "setName", Value: "rs0"}, bson.E{Key: "hosts", Value: bson.A{s.Address()}},
			bson.E{Key: "me", Value: s.Address()})
	}
	return d
}

// sent returns the received commands with the given name.
func (s *server) sent(command string) []bson.D {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []bson.D
	for _, c := range s.commands {
		if c[0].Key == command {
			out = append(out, c)
		}
	}
	return out
}
