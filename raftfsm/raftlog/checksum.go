package raftlog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
)

// The Extensions field of an entry contains a checksum: a marker, a version and a CRC-32C over index, term, type and
// data. Raft replicates the field unchanged, so every follower verifies the checksum of the leader. Version 2 also
// contains the number of writes that the leader acknowledges early (see owing); the checksum covers that number too.
const (
	sealMark    = 'Q'
	sealVersion = 1
	sealSize    = 6

	sealOwedVersion = 2
	sealOwedSize    = sealSize + 4 + 4
)

// Seal adds the checksum to l. The Extensions of l must be empty or made by Store.Owing.
func Seal(l *raft.Log) {
	version, more := byte(sealVersion), []byte(nil)
	if isOwing(l.Extensions) {
		version, more = sealOwedVersion, l.Extensions[1:]
	}
	b := append(make([]byte, 0, sealSize+len(more)), sealMark, version)
	b = binary.BigEndian.AppendUint32(b, sealSum(l, more))
	l.Extensions = append(b, more...)
}

// Verify verifies the checksum of l. It returns fault.Corrupt if the checksum is missing or wrong.
func Verify(l *raft.Log) error {
	e := l.Extensions
	known := len(e) == sealSize && e[1] == sealVersion || len(e) == sealOwedSize && e[1] == sealOwedVersion
	if !known || e[0] != sealMark {
		return sealError(l, "carries no checksum this version knows")
	}
	if binary.BigEndian.Uint32(e[2:]) != sealSum(l, e[sealSize:]) {
		return sealError(l, "does not match its checksum")
	}
	return nil
}

func sealSum(l *raft.Log, more []byte) uint32 {
	var h [17]byte
	binary.BigEndian.PutUint64(h[:], l.Index)
	binary.BigEndian.PutUint64(h[8:], l.Term)
	h[16] = byte(l.Type)
	return crc32.Update(crc32.Update(crc32.Checksum(h[:], castagnoli), castagnoli, l.Data), castagnoli, more)
}

func sealError(l *raft.Log, what string) error {
	return &fault.Error{Code: fault.Corrupt, Op: "group.log",
		Msg: fmt.Sprintf("log entry %d of term %d %s", l.Index, l.Term, what),
		Hint: "the disk or memory of this node altered it; replace the disk, or empty the data directory to let " +
			"this node join again as a new server"}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)
