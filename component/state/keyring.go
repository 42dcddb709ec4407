package state

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/quorate/quorate/internal/fault"
)

// KeyRing contains the keys that encrypt values. It encrypts with the primary key, and decrypts with any key. It is
// immutable and safe for concurrent use. Printing a KeyRing does not show the keys.
type KeyRing struct {
	primary *valueKey
	all     map[keyID]*valueKey
}

// An encrypted value consists of these parts:
//
//	magic  3 bytes: "QE" and the version 1
//	keyID  8 bytes: id of the key in the ring that encrypted the value
//	seed   28 bytes: the salt (16) and the nonce (12)
//	box    AES-GCM ciphertext of the length of the content type (1 byte), the content type and the value
//
// All bytes before the box, and the stored key, are the associated data of the ciphertext.
//
// Each value has its own salt, and its own AES key, which is derived from the salt. Therefore one key of the ring can
// encrypt any number of values. The seed is a MAC of the value, its content type, the stored key and the request id.
// Random bytes replace an empty request id.
const (
	sealMagic   = "QE\x01"
	keyIDSize   = 8
	saltSize    = 16
	seedSize    = saltSize + nonceSize
	nonceSize   = 12
	tagSize     = 16
	sealHead    = len(sealMagic) + keyIDSize + seedSize
	maxTypeSize = 255
)

// SealOverhead is the number of bytes by which encryption makes JSON text longer.
const SealOverhead = sealHead + 1 + tagSize

type keyID [keyIDSize]byte

type valueKey struct {
	id    keyID
	size  int    // bytes of a derived AES key, as many as the encryption key has
	value []byte // key from which the keys of values are derived
	mix   []byte // key from which seeds are derived
}

// CheckEncryptionKey returns an error unless text is a key of 16, 24 or 32 bytes in hexadecimal. The error text, such
// as "is not a key", is meant to follow the name of the setting. It never contains the key.
func CheckEncryptionKey(text string) error {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != 16 && len(raw) != 24 && len(raw) != 32 {
		return errors.New("is not a key: give 16, 24 or 32 bytes in hexadecimal, such as openssl rand -hex 32 prints")
	}
	return nil
}

// NewKeyRing creates a ring from hexadecimal keys. secondary is used only to decrypt, and may be empty. NewKeyRing
// returns fault.Invalid for a key that is not valid; the error does not contain the key.
func NewKeyRing(primary, secondary string) (*KeyRing, error) {
	const op = "state.NewKeyRing"
	if primary == "" {
		return nil, &fault.Error{Code: fault.Invalid, Op: op, Msg: MetadataSecondaryKey + " needs " +
			MetadataPrimaryKey,
			Hint: "the primary key encrypts; the secondary one only reads what it encrypted before"}
	}
	ring := &KeyRing{all: map[keyID]*valueKey{}}
	for name, text := range map[string]string{MetadataPrimaryKey: primary, MetadataSecondaryKey: secondary} {
		if text == "" {
			continue
		}
		if err := CheckEncryptionKey(text); err != nil {
			return nil, fault.New(fault.Invalid, op, name+" "+err.Error())
		}
		raw, err := hex.DecodeString(text)
		if err != nil {
			return nil, fault.New(fault.Invalid, op, name+" is not hexadecimal")
		}
		key := newValueKey(raw)
		ring.all[key.id] = key
		if name == MetadataPrimaryKey {
			ring.primary = key
		}
	}
	return ring, nil
}

// String returns a text that does not contain the keys.
func (r *KeyRing) String() string { return "(key ring)" }

// GoString returns the same text as String, so that the format %#v does not show the keys.
func (r *KeyRing) GoString() string { return r.String() }

func newValueKey(raw []byte) *valueKey {
	k := &valueKey{size: len(raw), value: mac(raw, "quorate state value"), mix: mac(raw, "quorate state seed")}
	copy(k.id[:], mac(raw, "quorate state key id"))
	return k
}

// mac returns the HMAC-SHA-256 of parts. It hashes the length of each part before the part itself. Therefore different
// lists of parts never have the same hash input.
func mac(key []byte, parts ...string) []byte {
	h := hmac.New(sha256.New, key)
	var size [8]byte
	for _, part := range parts {
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		h.Write(size[:])
		h.Write([]byte(part))
	}
	return h.Sum(nil)
}

// box returns the AES-GCM cipher for a value with the given salt.
func (k *valueKey) box(salt []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(mac(k.value, string(salt))[:k.size])
	if err != nil {
		return nil, &fault.Error{Code: fault.Internal, Op: "state.Encrypt", Msg: "making a cipher", Err: err}
	}
	return cipher.NewGCM(block)
}

// seal encrypts a value for its stored key.
func (r *KeyRing) seal(key, requestID string, value []byte, contentType string) ([]byte, error) {
	if len(contentType) > maxTypeSize {
		return nil, &fault.Error{Code: fault.Invalid, Op: "state.Encrypt", Key: key,
			Msg: "the content type is longer than 255 bytes"}
	}
	k := r.primary
	mix := "id:" + requestID
	if requestID == "" {
		mix = "random:" + rand.Text()
	}
	out := make([]byte, 0, sealHead+1+len(contentType)+len(value)+tagSize)
	out = append(append(out, sealMagic...), k.id[:]...)
	out = append(out, mac(k.mix, mix, key, contentType, string(value))[:seedSize]...)
	box, err := k.box(out[sealHead-seedSize : sealHead-nonceSize])
	if err != nil {
		return nil, err
	}
	plain := make([]byte, 0, 1+len(contentType)+len(value))
	plain = append(append(append(plain, byte(len(contentType))), contentType...), value...)
	return box.Seal(out, out[sealHead-nonceSize:sealHead], plain, associated(out[:sealHead], key)), nil
}

// open decrypts the value of a stored key.
func (r *KeyRing) open(key string, sealed []byte) (value []byte, contentType string, err error) {
	if v, ok := laterForm(sealed); ok {
		return nil, "", &fault.Error{Code: fault.Unimplemented, Op: "state.Decrypt", Key: key,
			Msg:  fmt.Sprintf("the value is encrypted in form %d, this version understands up to %d", v, sealMagic[2]),
			Hint: "run the version that wrote it, or a newer one; the value is kept as it is"}
	}
	if len(sealed) < sealHead || !bytes.HasPrefix(sealed, []byte(sealMagic)) {
		return nil, "", damaged(key, "the value is not encrypted, or was damaged",
			"it may have been written before the store had encryption keys: delete it or save it again")
	}
	var id keyID
	copy(id[:], sealed[len(sealMagic):])
	k, ok := r.all[id]
	if !ok {
		return nil, "", damaged(key, "the value was encrypted with a key that is not here",
			"give that key as "+MetadataSecondaryKey)
	}
	head := sealed[:sealHead]
	box, err := k.box(head[sealHead-seedSize : sealHead-nonceSize])
	if err != nil {
		return nil, "", err
	}
	plain, err := box.Open(nil, head[sealHead-nonceSize:], sealed[sealHead:], associated(head, key))
	if err != nil || len(plain) == 0 || len(plain) < 1+int(plain[0]) {
		return nil, "", damaged(key, "the value was damaged, or belongs to another key", "")
	}
	end := 1 + int(plain[0])
	return plain[end:], string(plain[1:end]), nil
}

// laterForm reports whether a value has the encryption format of a newer version of Quorate, and returns the number of
// this format. It returns false for every JSON text.
func laterForm(sealed []byte) (version byte, ok bool) {
	if len(sealed) < len(sealMagic) || !bytes.HasPrefix(sealed, []byte(sealMagic[:2])) {
		return 0, false
	}
	v := sealed[2]
	return v, v > sealMagic[2] && v < ' '
}

func associated(head []byte, key string) []byte {
	return append(bytes.Clone(head), key...)
}

func damaged(key, msg, hint string) error {
	return &fault.Error{Code: fault.Corrupt, Op: "state.Decrypt", Key: key, Msg: msg, Hint: hint}
}
