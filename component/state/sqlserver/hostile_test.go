package sqlserver_test

import (
	"context"
	"encoding/binary"
	"io"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/sqlserver"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// encoded returns the bytes that put writes to an answer.
func encoded(put func(t *tokens)) []byte {
	var out tokens
	put(&out)
	return out.Bytes()
}

// found returns the answer to a read, with a row for each key.
func found(keys ...string) []byte {
	return encoded(func(t *tokens) {
		r := result{names: []string{"", "", "", "", "", ""},
			kinds: []byte{typeNVarchar, typeNVarchar, typeVarbin, typeBit, typeBinary, typeInt}}
		for _, key := range keys {
			r.rows = append(r.rows, []any{key, "1", nil, false, []byte("12345678"), nil})
		}
		t.result(r)
		t.done(tokenDone, 0x10, len(keys))
	})
}

// A hostile server, with or without TLS, cannot make the client allocate much memory, or end the process.
func TestStore_HostileServer(t *testing.T) {
	columns := func(count uint16, kind ...byte) func(t *tokens) {
		return func(t *tokens) { t.put(byte(tokenColumns), count, uint32(0), uint16(0), kind, "") }
	}
	const text = "\xe7\xff\xff\x09\x04\xd0\x00\x34" // nvarchar(max)
	env := func(kind byte, values ...any) []byte {
		return encoded(func(t *tokens) {
			t.sized(tokenEnv, append([]any{kind}, values...)...)
			t.done(tokenDone, 0, 0)
		})
	}
	const huge = uint32(2_000_000_000)
	for name, raw := range map[string][]byte{
		"sign-in information": encoded(func(t *tokens) { t.put(byte(0xee), uint32(100), huge) }),
		"sign-in token":       encoded(func(t *tokens) { t.sized(0xed, huge) }),
		"huge text": encoded(func(t *tokens) {
			columns(1, []byte(text)...)(t)
			t.put(byte(tokenRow), uint64(math.MaxInt32))
		}),
		"huge image": encoded(func(t *tokens) {
			columns(1, 0x22, 255, 255, 255, 127, 0)(t)
			t.put(byte(tokenRow), byte(1), byte(0), uint64(0), huge)
		}),
		"huge variant": encoded(func(t *tokens) {
			columns(1, 0x62, 255, 255, 255, 127)(t)
			t.put(byte(tokenRow), huge, byte(typeVarbin), byte(0), uint16(1))
		}),
		"many columns": encoded(columns(65_000, 0x26, 8)),
		"no columns":   encoded(columns(0, 0x26, 8)),
		"encrypted column": encoded(func(t *tokens) {
			t.put(byte(tokenColumns), uint16(1), uint32(0), uint16(0x800))
		}),
		"large packets":      env(4, "2000000", "4096"),
		"packets of no size": env(4, "-1", "4096"),
		"unknown change":     env(99, "a", "b"),
		"unknown token":      {0x99, 1, 2, 3},
		"no end":             encoded(func(t *tokens) { t.done(tokenDone, 1, 0) }),
		"data behind the end": encoded(func(t *tokens) {
			t.done(tokenDone, 0, 0)
			t.put(byte(0xee), uint32(100), huge)
		}),
		"column encryption": encoded(func(t *tokens) { t.put(byte(0xae), byte(4), uint32(1), byte(1), byte(255)) }),
		"unrequested row":   found("stranger"),
		"second row":        found("k", "k"),
		"many rows":         found(strings.Split(strings.Repeat("k,", 5000), ",")...),
	} {
		for _, encrypted := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				s := start(t)
				settings := uri(s)
				if encrypted {
					encrypting(t, s, 1)
					settings = "sqlserver://shop:secret@" + s.Address() +
						"?database=orders&encrypt=true&trustservercertificate=true"
				}
				store, err := open(t.Context(), t, sqlserver.Options{}, "connectionString", settings)
				testutil.Must(t, err)
				defer store.Close()
				s.fail("SELECT t.[Key], t.[Data]", reaction{raw: raw})
				statetest.Bounded(t, 64<<20, func() {
					item, err := store.Get(t.Context(), state.GetRequest{Key: "k"})
					if code := fault.CodeOf(err); code != fault.Unavailable && code != fault.Corrupt {
						t.Errorf("Get = %v, %v", item, err)
					}
				})
				s.fail("INSERT", reaction{raw: raw})
				_, _ = store.Set(t.Context(), state.SetRequest{Items: []state.Write{{Key: "k", Value: []byte("1")}}})
				s.heal()
				item, err := store.Get(t.Context(), state.GetRequest{Key: "k"})
				if err != nil {
					t.Errorf("after the attack: Get = %v, %v", item, err)
				}
			})
		}
	}
}

// The store refuses packets with a wrong size and messages without an end. It also refuses a value above the limit.
func TestStore_HostilePackets(t *testing.T) {
	packet := func(status byte, size int) []byte {
		p := []byte{packetAnswer, status, 0, 0, 0, 0, 1, 0}
		binary.BigEndian.PutUint16(p[2:], uint16(size)) //nolint:gosec // as the test wants it
		return append(p, make([]byte, max(size-len(p), 0))...)
	}
	var endless []byte
	for range 1000 {
		endless = append(endless, packet(0, 4096)...)
	}
	for name, pieces := range map[string][]byte{
		"endless":        endless,
		"empty packet":   append(packet(0, 8), packet(1, 20)...),
		"packet of 7":    packet(1, 7),
		"other protocol": []byte("HTTP/1.1 400 Bad Request\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			store, err := open(t.Context(), t, sqlserver.Options{LargestValue: 1000}, "connectionString", uri(s))
			testutil.Must(t, err)
			defer store.Close()
			s.fail("SELECT t.[Key], t.[Data]", reaction{pieces: pieces})
			statetest.Bounded(t, 64<<20, func() {
				_, err := store.Get(t.Context(), state.GetRequest{Key: "k"})
				want := fault.Unavailable
				if name == "endless" {
					want = fault.TooLarge
				}
				statetest.WantFault(t, err, want, "cannot be read")
			})
		})
	}
}

func TestStore_ReadsValuesUpToTheLimit(t *testing.T) {
	s := start(t)
	store, err := open(t.Context(), t, sqlserver.Options{LargestValue: 2 << 20}, "connectionString", uri(s))
	testutil.Must(t, err)
	defer store.Close()
	for size, code := range map[int]fault.Code{2 << 20: "", 4 << 20: fault.TooLarge} {
		value := make([]byte, size)
		value[0] = 0xff // stored as base64
		_, err = store.Set(t.Context(), state.SetRequest{Items: []state.Write{{Key: "k", Value: value}}})
		testutil.Must(t, err)
		item, err := store.Get(t.Context(), state.GetRequest{Key: "k"})
		if fault.CodeOf(err) != code || code == "" && len(item.Value) != size {
			t.Errorf("%d bytes: Get = %d bytes, %v", size, len(item.Value), err)
		}
	}
}

// Hostile answers before and during the sign-in cannot make the client allocate much memory.
func TestOpen_HostileServer(t *testing.T) {
	const preloginTLS = "\x04\x01\x00\x0f\x00\x00\x01\x00" + "\x01\x00\x06\x00\x01\xff\x01"
	for name, first := range map[string]string{
		"no encryption option":    "\x04\x01\x00\x0e\x00\x00\x01\x00" + "\x00\x00\x00\x00\x00\xff",
		"empty encryption option": "\x04\x01\x00\x0f\x00\x00\x01\x00" + "\x01\x00\x06\x00\x00\xff\x00",
		"option outside":          "\x04\x01\x00\x0e\x00\x00\x01\x00" + "\x01\xff\xff\xff\xff\xff",
		"no answer":               "\x04\x01\x00\x08\x00\x00\x01\x00",
		"unfinished answer":       strings.Repeat("\x04\x00\xff\xff\x00\x00\x01\x00"+strings.Repeat("x", 65527), 50),
		"no TLS":                  preloginTLS + strings.Repeat("x", 1000),
		"empty handshake": preloginTLS +
			strings.Repeat("\x12\x01\x00\x08\x00\x00\x01\x00", 1000),
		"huge handshake": preloginTLS +
			"\x12\x01\xff\xff\x00\x00\x01\x00\x16\x03\x03\x40\x00\x02\xff\xff\xff" + strings.Repeat("x", 60_000),
		"huge sign-in": "\x04\x01\x00\x0f\x00\x00\x01\x00" + "\x01\x00\x06\x00\x01\xff\x02" +
			"\x04\x01\x00\x11\x00\x00\x01\x00\xee\x64\x00\x00\x00\xff\xff\xff\xff",
		"sign-in token": "\x04\x01\x00\x0f\x00\x00\x01\x00" + "\x01\x00\x06\x00\x01\xff\x02" +
			"\x04\x01\x00\x0b\x00\x00\x01\x00\xed\x00\x00",
	} {
		t.Run(name, func(t *testing.T) {
			var answered atomic.Bool
			address := statetest.Hostile(t, func(conn net.Conn) {
				if _, err := conn.Read(make([]byte, 4096)); err == nil {
					_, err = io.WriteString(conn, first)
					answered.Store(err == nil)
					_, _ = io.Copy(io.Discard, conn)
				}
			})
			for !answered.Load() {
				statetest.Bounded(t, 16<<20, func() { // each attempt, because their number depends on the machine
					ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
					defer cancel()
					_, err := open(ctx, t, sqlserver.Options{}, "connectionString", "sqlserver://shop:secret@"+address)
					if fault.CodeOf(err) == "" {
						t.Errorf("Open: %v", err)
					}
				})
			}
		})
	}
}
