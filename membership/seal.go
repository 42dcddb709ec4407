package membership

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// The format of an encrypted packet, big-endian:
//
//		0xC7 | key u32 | receiver u64 | session 16 bytes | counter u64 | AES-256-GCM of the packet
//
//	  - key identifies the gossip key.
//	  - receiver identifies the incarnation that receives the packet.
//	  - session identifies the incarnation that sends the packet. The encryption key of a session is derived from the
//	    gossip key.
//	  - counter is the number of the packet in the session, so a nonce is never used twice.
//
// The receiver accepts each packet only once, so a recorded packet cannot be replayed.
const (
	sealMark     = 0xC7
	sealHead     = 1 + 4 + 8 + sessionLen + 8
	sealTag      = 16
	sealOverhead = sealHead + sealTag
	sessionLen   = 16
	keyLen       = 32

	maxSessions = 4096      // above this number, idle sessions move from heard to floor
	idleSession = time.Hour // time without packets after which a session is idle
)

type sessionID [sessionLen]byte

// sealKey is one gossip key.
type sealKey struct {
	id  uint32
	key []byte
	own cipher.AEAD // seals what this node sends
}

// sealer seals and opens packets. It is safe for concurrent use.
type sealer struct {
	label   string
	self    uint64
	session sessionID
	count   atomic.Uint64
	keys    atomic.Pointer[[]*sealKey]

	mu    sync.Mutex // guards what follows
	heard map[heardKey]*heard
	floor map[heardKey]uint64 // highest counter of each session deleted from heard; only higher ones are accepted
}

type heardKey struct {
	key     uint32
	session sessionID
}

// heard is the receive state of one session.
type heard struct {
	aead cipher.AEAD
	seen window
	last time.Time
}

func newSealer(label, self string, keys [][]byte) (*sealer, error) {
	s := &sealer{label: label, self: lifeTag(self), heard: map[heardKey]*heard{}, floor: map[heardKey]uint64{}}
	_, _ = rand.Read(s.session[:]) // never fails: it aborts the program instead
	return s, s.rekey(keys)
}

// rekey replaces the keys. The first key seals packets. Every key can open packets.
func (s *sealer) rekey(keys [][]byte) error {
	if len(keys) == 0 {
		return fault.New(fault.Invalid, "membership.Rekey", "there is no gossip key")
	}
	var next []*sealKey
	for _, k := range keys {
		if len(k) != keyLen {
			return fault.New(fault.Invalid, "membership.Rekey",
				fmt.Sprintf("a gossip key has %d bytes, not %d", keyLen, len(k)))
		}
		id := sha256.Sum256(append([]byte("quorate gossip key id "), k...))
		next = append(next, &sealKey{id: binary.BigEndian.Uint32(id[:]), key: bytes.Clone(k),
			own: sessionAEAD(k, s.session)})
	}
	s.keys.Store(&next)
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := func(k uint32) bool { return !slices.ContainsFunc(next, func(n *sealKey) bool { return n.id == k }) }
	for k, h := range s.heard { // if the key is used again, old packets stay refused
		if gone(k.key) {
			delete(s.heard, k)
			s.floor[k] = h.seen.top
		}
	}
	return nil
}

// sessionAEAD returns the cipher of one session under a gossip key.
func sessionAEAD(key []byte, id sessionID) cipher.AEAD {
	derived, err := hkdf.Key(sha256.New, key, id[:], "quorate gossip packets", keyLen)
	if err != nil {
		panic(err) // possible only for more than 8160 bytes
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		panic(err) // possible only for another length of the key
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // possible only for another cipher
	}
	return aead
}

// lifeTag returns a short hash of the gossip name of an incarnation. Packets identify their receiver by this hash.
func lifeTag(name string) uint64 {
	h := sha256.Sum256([]byte("quorate gossip incarnation " + name))
	return binary.BigEndian.Uint64(h[:])
}

func nonce(counter uint64) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 4, 12), counter)
}

// bound returns the additional authenticated data of a packet: its unencrypted head and the cluster label.
func (s *sealer) bound(head []byte) []byte { return append(bytes.Clone(head), s.label...) }

// seal encrypts a packet for the incarnation with the gossip name to.
func (s *sealer) seal(to string, packet []byte) []byte {
	key := (*s.keys.Load())[0]
	counter := s.count.Add(1)
	b := make([]byte, 0, len(packet)+sealOverhead)
	b = append(b, sealMark)
	b = binary.BigEndian.AppendUint32(b, key.id)
	b = binary.BigEndian.AppendUint64(b, lifeTag(to))
	b = append(b, s.session[:]...)
	b = binary.BigEndian.AppendUint64(b, counter)
	return key.own.Seal(b, nonce(counter), packet, s.bound(b))
}

// open decrypts the sealed packet b. It returns either the packet, or the reason why the packet is refused.
func (s *sealer) open(b []byte, now time.Time) ([]byte, Reason) {
	if len(b) < sealOverhead || b[0] != sealMark {
		return nil, Plain
	}
	id := binary.BigEndian.Uint32(b[1:])
	keys := *s.keys.Load()
	i := slices.IndexFunc(keys, func(k *sealKey) bool { return k.id == id })
	if i < 0 {
		return nil, UnknownKey
	}
	if binary.BigEndian.Uint64(b[5:]) != s.self {
		return nil, Stale
	}
	k := heardKey{id, sessionID(b[13:])}
	counter := binary.BigEndian.Uint64(b[13+sessionLen:])
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.heard[k]
	if h == nil {
		h = &heard{aead: sessionAEAD(keys[i].key, k.session), seen: raised(s.floor[k])}
	}
	if !h.seen.open(counter) {
		return nil, Replayed
	}
	packet, err := h.aead.Open(nil, nonce(counter), b[sealHead:], s.bound(b[:sealHead]))
	if err != nil {
		return nil, Forged
	}
	h.seen.take(counter)
	h.last = now
	s.heard[k] = h
	delete(s.floor, k)
	s.tidy(now)
	return packet, ""
}

// tidy limits the memory for sessions. If there are more than maxSessions, it deletes the idle ones and keeps only
// their highest counters. The caller holds mu.
func (s *sealer) tidy(now time.Time) {
	if len(s.heard) <= maxSessions {
		return
	}
	for k, h := range s.heard {
		if now.Sub(h.last) >= idleSession {
			delete(s.heard, k)
			s.floor[k] = h.seen.top
		}
	}
}

// window records which counters of a session were accepted. It has the highest accepted counter, and one bit for each
// of the last windowBits counters up to the highest.
type window struct {
	top  uint64
	bits [windowBits / 64]uint64 // bit counter % windowBits
}

// windowBits is the size of the window. A counter that is windowBits or more behind the highest one is refused.
const windowBits = 1024

// raised returns a window in which every counter up to top counts as accepted.
func raised(top uint64) window {
	w := window{top: top}
	if top > 0 {
		for i := range w.bits {
			w.bits[i] = ^uint64(0)
		}
	}
	return w
}

// open reports whether a packet with the counter n may be accepted. It returns false if n was already accepted, or is
// too far behind the highest counter. Counters begin at 1.
func (w *window) open(n uint64) bool {
	switch {
	case n == 0:
		return false
	case n > w.top:
		return true
	case w.top-n >= windowBits:
		return false
	}
	return w.bits[n/64%(windowBits/64)]&(1<<(n%64)) == 0
}

// take records that the counter n was accepted. Call it only if open returns true for n.
func (w *window) take(n uint64) {
	if n > w.top {
		for i := w.top + 1; i < n && i-w.top <= windowBits; i++ {
			w.bits[i/64%(windowBits/64)] &^= 1 << (i % 64)
		}
		w.top = n
	}
	w.bits[n/64%(windowBits/64)] |= 1 << (n % 64)
}
