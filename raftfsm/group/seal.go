package group

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
)

// An entry's Extensions carry our checksum: a mark, a version and a CRC-32C over index,
// term, type and data. raft stores and replicates Extensions untouched, so the checksum
// made by the leader is the one every follower verifies.
const (
	sealMark    = 'Q'
	sealVersion = 1
	sealSize    = 6
)

// seal puts the checksum on l.
func seal(l *raft.Log) {
	b := make([]byte, 2, sealSize)
	b[0], b[1] = sealMark, sealVersion
	l.Extensions = binary.BigEndian.AppendUint32(b, sealSum(l))
}

// verify checks the checksum of l.
func verify(l *raft.Log) error {
	e := l.Extensions
	if len(e) != sealSize || e[0] != sealMark || e[1] != sealVersion {
		return sealError(l, "carries no checksum this version knows")
	}
	if binary.BigEndian.Uint32(e[2:]) != sealSum(l) {
		return sealError(l, "does not match its checksum")
	}
	return nil
}

func sealSum(l *raft.Log) uint32 {
	var h [17]byte
	binary.BigEndian.PutUint64(h[:], l.Index)
	binary.BigEndian.PutUint64(h[8:], l.Term)
	h[16] = byte(l.Type)
	return crc32.Update(crc32.Checksum(h[:], castagnoli), castagnoli, l.Data)
}

func sealError(l *raft.Log, what string) error {
	return &fault.Error{Code: fault.Corrupt, Op: "group.log",
		Msg:  fmt.Sprintf("log entry %d of term %d %s", l.Index, l.Term, what),
		Hint: "the disk or memory of this node altered it; replace the disk, or empty the data directory to let this node join again as a new server"}
}
