package mongodb_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/mongodb"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
)

// secured makes a server use TLS, and returns the connection settings for it.
func secured(t *testing.T, s *server) string {
	t.Helper()
	web := httptest.NewTLSServer(nil)
	web.Close()
	s.tls = &tls.Config{Certificates: web.TLS.Certificates, MinVersion: tls.VersionTLS12}
	file := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return uri(s) + "&tls=true&tlsCAFile=" + file
}

// raw returns an answer with the bytes of header instead of a message with a document.
func raw(header ...uint32) bson.D {
	var text []byte
	for _, n := range header {
		text = binary.LittleEndian.AppendUint32(text, n)
	}
	return bson.D{{Key: "raw", Value: string(text)}}
}

// A hostile server, with or without TLS, cannot make the client allocate much memory, or end the process.
func TestStore_HostileServer(t *testing.T) {
	nested := []byte{8, 0, 0, 0, 0x0a, 'x', 0, 0}
	for range 200_000 {
		outer := binary.LittleEndian.AppendUint32(nil, uint32(len(nested))+8)
		outer = append(outer, 3, 'x', 0)
		nested = append(append(outer, nested...), 0)
		if len(nested) > 20_000 {
			break
		}
	}
	found := func(value any) bson.D {
		return bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)},
			{Key: "ns", Value: "daprStore.daprCollection"}, {Key: "firstBatch", Value: bson.A{
				bson.D{{Key: "_id", Value: "a||k"}, {Key: "value", Value: value}, {Key: "_etag", Value: "e"}}}}}}}
	}
	for name, answer := range map[string]bson.D{
		"huge message":       raw(2_000_000_000, 1, 1, 2013),
		"largest message":    raw(48_000_000, 1, 1, 2013), // the rest of the message never arrives
		"negative length":    raw(1<<31, 1, 1, 2013),
		"compressed message": raw(25, 1, 1, 2012, 2013, 2_000_000_000, 2),
		"nested value":       found(bson.Raw(nested)),
		"unrequested key":    found("1"),
	} {
		for _, encrypted := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				s := start(t)
				address := uri(s)
				if encrypted {
					address = secured(t, s)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				store, err := open(ctx, t, mongodb.Options{}, "connectionString", address, "operationTimeout", "1s")
				if err != nil {
					t.Fatal(err)
				}
				defer store.Close()
				s.fail("find", answers(answer))
				statetest.Bounded(t, 16<<20, func() {
					keys := []string{"a||k"}
					if name == "unrequested key" {
						keys = []string{"a||l"}
					}
					items, err := store.BulkGet(ctx, state.BulkGetRequest{Keys: keys})
					if err == nil && name == "nested value" {
						err = items[0].Err
					}
					if err == nil || fault.CodeOf(err) == "" {
						t.Errorf("BulkGet = %v, %v", items, err)
					}
				})
			})
		}
	}
}

// A hostile server requests a huge number of iterations for the sign-in, which the driver would carry out.
func TestOpen_HostileSignIn(t *testing.T) {
	s := start(t)
	s.fail("saslStart", func(body bson.D) bson.D {
		for _, e := range body {
			if b, ok := e.Value.(bson.Binary); ok {
				_, nonce, _ := strings.Cut(string(b.Data), "r=")
				return bson.D{{Key: "ok", Value: 1}, {Key: "conversationId", Value: 1}, {Key: "done", Value: false},
					{Key: "payload", Value: bson.Binary{
						Data: []byte("r=" + nonce + "x,s=MTIzNDU2Nzg5MDEy,i=2000000000")}}}
			}
		}
		return nil
	})
	signIn := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := open(ctx, t, mongodb.Options{}, "connectionString",
			"mongodb://u:p@"+s.Address()+"/?replicaSet=rs0&authMechanism=SCRAM-SHA-256")
		return err
	}
	// The driver signs in again until the context ends. If that cuts the last attempt, the error names only the cut.
	limit := time.Now().Add(time.Minute)
	err := signIn()
	for err != nil && !strings.Contains(err.Error(), "iterations of SCRAM") && time.Now().Before(limit) {
		err = signIn()
	}
	if err == nil || !strings.Contains(err.Error(), "iterations of SCRAM") {
		t.Errorf("Open: %v", err)
	}
}
