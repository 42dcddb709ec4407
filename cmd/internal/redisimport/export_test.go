package redisimport

// DocumentData exposes documentData to the fuzzer.
func DocumentData(text []byte) ([]byte, error) { return documentData(text) }
