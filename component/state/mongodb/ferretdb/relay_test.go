package ferretdb_test

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/quorate/quorate/internal/testutil"
)

// The frames of MongoDB's protocol.
const (
	headerSize = 16 // length, request id, id of the answered request, opcode
	opMessage  = 2013
	maxFrame   = 48 << 20
)

// relay returns the address of a relay to a server. It forwards every message except the request createIndexes. It
// answers this request itself, because FerretDB has no index that removes expired documents.
func relay(t *testing.T, server string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer client.Close() //nolint:errcheck // the connection has ended
				up, err := net.Dial("tcp", server)
				if err != nil {
					return
				}
				defer up.Close() //nolint:errcheck // the connection has ended
				all.Go(func() {
					_, _ = io.Copy(client, up) // ends when one of the connections ends
					_ = client.Close()
				})
				requests(client, up)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return l.Addr().String()
}

// requests forwards requests until a connection ends. A driver sends only one request at a time on a connection.
func requests(client, server net.Conn) {
	for {
		header := make([]byte, headerSize)
		if _, err := io.ReadFull(client, header); err != nil {
			return
		}
		size := int(binary.LittleEndian.Uint32(header))
		if size < headerSize || size > maxFrame {
			return
		}
		body := make([]byte, size-headerSize)
		if _, err := io.ReadFull(client, body); err != nil {
			return
		}
		to, frame := server, append(header, body...)
		if binary.LittleEndian.Uint32(header[12:]) == opMessage && createsIndexes(body) {
			to, frame = client, accepted(header)
		}
		if _, err := to.Write(frame); err != nil {
			return
		}
	}
}

// createsIndexes reports whether the body of a message is the command createIndexes. The body has flags, the kind of
// its section, and a document. The first name in the document is the name of the command.
func createsIndexes(body []byte) bool {
	const before = 4 + 1 + 4 + 1 // flags, kind of section, length of the document, type of the first value
	return len(body) > before && strings.HasPrefix(string(body[before:]), "createIndexes\x00")
}

// accepted returns the answer {ok: 1} to a request with this header.
func accepted(request []byte) []byte {
	answer, err := bson.Marshal(bson.D{{Key: "ok", Value: 1.0}})
	if err != nil {
		return nil
	}
	frame := make([]byte, headerSize+4+1, headerSize+4+1+len(answer))
	copy(frame[8:12], request[4:8])
	binary.LittleEndian.PutUint32(frame[12:], opMessage)
	frame = append(frame, answer...)
	binary.LittleEndian.PutUint32(frame, uint32(len(frame))) //nolint:gosec // a short answer
	return frame
}
