package redisimport

// DocumentData shows documentData to the fuzzer.
func DocumentData(text []byte) ([]byte, error) { return documentData(text) }
