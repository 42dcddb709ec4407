// Package schema owns the types of the admin API. They describe what an operator can see and change in a node and
// in the cluster. They do not depend on how data is replicated. Their JSON names never change, because programs
// read them.
package schema
