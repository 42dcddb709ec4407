package kv

import (
	"bytes"
	"encoding/binary"
)

// The first byte of each key in the database identifies the table of the key. These values are part of the format. Four
// of the tables exist twice; see the type tables.
const (
	tableMeta        = 0x01
	tableData        = 0x02
	tableDue         = 0x03
	tableOrigin      = 0x04
	tableRemembered  = 0x05
	tableClient      = 0x06
	tableClientQueue = 0x07
	tableTerm        = 0x08
)

// tables selects one of the two sets of tables. Readers use the live set. A restore fills the other set and then makes
// that set live. The value of tables is added to the first byte of each key.
type tables byte

const otherTables tables = 0x10

// other returns the set that is not live when t is live.
func (t tables) other() tables { return t ^ otherTables }

// era is a counter that every completed restore increments. A restore also makes the other set of tables live. A
// machine starts with the era 0 or 1, so that otherTables is the live set whenever the era is odd.
//
// A reader compares the eras before and after a read. If the two eras are equal, no restore has replaced the tables
// during the read. Comparing the live sets would not suffice, because two restores make the same set live again.
type era uint64

// firstEra returns the era of a machine that is opened with the live set t.
func firstEra(t tables) era { return era(t / otherTables) }

// tables returns the live set.
func (e era) tables() tables { return tables(e%2) * otherTables }

func (t tables) data() byte   { return tableData + byte(t) }
func (t tables) due() byte    { return tableDue + byte(t) }
func (t tables) client() byte { return tableClient + byte(t) }
func (t tables) queue() byte  { return tableClientQueue + byte(t) }

// all returns the first bytes of the keys of a set.
func (t tables) all() [4]byte { return [...]byte{t.data(), t.due(), t.client(), t.queue()} }

func metaKey() []byte { return []byte{tableMeta} }

func appendDataKey(dst []byte, t tables, store, key string) []byte {
	dst = append(dst, t.data())
	dst = append(dst, store...)
	dst = append(dst, 0)
	return append(dst, key...)
}

func dataKeySize(store, key string) int { return 1 + len(store) + 1 + len(key) }

func appendDueKey(dst []byte, t tables, expireAt uint64, store, key string) []byte {
	dst = appendNumberKey(dst, t.due(), expireAt)
	dst = append(dst, store...)
	dst = append(dst, 0)
	return append(dst, key...)
}

// parseDueKey splits what appendDueKey wrote. The results alias k.
func parseDueKey(k []byte) (expireAt uint64, store, key []byte, ok bool) {
	if len(k) < 9 || k[0]&^byte(otherTables) != tableDue {
		return 0, nil, nil, false
	}
	store, key, ok = bytes.Cut(k[9:], []byte{0})
	return binary.BigEndian.Uint64(k[1:]), store, key, ok
}

// appendNumberKey appends a key of a table whose keys are numbers.
func appendNumberKey(dst []byte, table byte, n uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, table), n)
}

func appendRememberedKey(dst []byte, origin, index uint64) []byte {
	return binary.BigEndian.AppendUint64(appendNumberKey(dst, tableRemembered, origin), index)
}

func parseNumberKey(k []byte) (n uint64, ok bool) {
	if len(k) != 9 {
		return 0, false
	}
	return binary.BigEndian.Uint64(k[1:]), true
}

func parseRememberedKey(k []byte) (origin, index uint64, ok bool) {
	if len(k) != 17 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint64(k[1:]), binary.BigEndian.Uint64(k[9:]), true
}

// appendClientKey appends the key of a client result to dst: the table, the length of the scope, the scope, and the id.
// Both scope and id may contain any byte. The length makes the key unique for each pair of scope and id.
func appendClientKey(dst []byte, t tables, scope, id string) []byte {
	dst = append(dst, t.client())
	dst = binary.AppendUvarint(dst, uint64(len(scope)))
	dst = append(dst, scope...)
	return append(dst, id...)
}

// successor returns the least key above every key that starts with prefix.
func successor(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] != 0xff {
			end[i]++
			return end[:i+1]
		}
	}
	return end
}
