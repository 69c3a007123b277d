"""The Lua scripts of the Redis log: whatever must happen at once, or not at all.

Keys of a namespace, all in one slot of a cluster because of the braces:

```
PREFIX:{DIGEST}:log    stream   an entry per frame: d frame, n tokens, r records, c records so far
PREFIX:{DIGEST}:meta   hash     epoch, last id, bytes, tokens, records, total records ever,
                                trimmed (newest id the budget removed), ntrimmed, purged (newest
                                mark's id), deadline (ms when everything is over age)
PREFIX:{DIGEST}:marks  hash     id -> frame of the purge marks that still matter
PREFIX:namespaces      hash     DIGEST -> the namespace as JSON
```

The *epoch* is drawn when a stream comes into being. A stream that vanished (Redis was restarted
empty, flushed, or evicted it) or was set back (a replica without the newest entries took over, or
an append-only file lost its tail) gets a new one with the next append: a writer names the last
entry it knows, and the script looks whether it is there. Readers whose position has another epoch
start over.

Trimming takes the oldest entries while the stream is over its budget or over age, a few per append,
so that Redis is never busy with it for long. Bytes are those of the frames, counted exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

_COMMON = """
local log, meta, marks = KEYS[1], KEYS[2], KEYS[3]
local function num(text) return tonumber(text or '0') or 0 end
local function int(value) return string.format('%.0f', value) end
local function split(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(seq)
end
local function above(a, b)
  local am, as = split(a)
  local bm, bs = split(b)
  return am > bm or (am == bm and as > bs)
end
local function after(id)
  local ms, seq = split(id)
  return int(ms) .. '-' .. int(seq + 1)
end
local function sizes(fields)
  local bytes, tokens, records = 0, 0, 0
  for i = 1, #fields, 2 do
    if fields[i] == 'd' then bytes = #fields[i + 1]
    elseif fields[i] == 'n' then tokens = num(fields[i + 1])
    elseif fields[i] == 'r' then records = num(fields[i + 1]) end
  end
  return bytes, tokens, records
end
"""

APPEND = (
    _COMMON
    + """
local new_epoch, known_epoch, known = ARGV[1], ARGV[2], ARGV[3]
local max_bytes, max_age, mark_all = num(ARGV[4]), num(ARGV[5]), ARGV[6]
local state = redis.call('HMGET', meta, 'epoch', 'last', 'bytes', 'tokens', 'records', 'total',
                         'trimmed', 'ntrimmed', 'purged', 'deadline')
local epoch = state[1]
local last, trimmed, purged = state[2] or '0-0', state[7] or '0-0', state[9] or '0-0'
local bytes, tokens, records = num(state[3]), num(state[4]), num(state[5])
local total, ntrimmed = num(state[6]), num(state[8])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local there = redis.call('EXISTS', log) == 1

if there and not epoch then  -- only the counts were lost
  epoch, last, bytes, tokens, records = new_epoch, '0-0', 0, 0, 0
  local from = '-'
  while true do
    local found = redis.call('XRANGE', log, from, '+', 'COUNT', 64)
    for _, entry in ipairs(found) do
      local b, n, r = sizes(entry[2])
      bytes, tokens, records = bytes + b, tokens + n, records + r
      last = entry[1]
    end
    if #found < 64 then break end
    from = after(last)
  end
  total = records
elseif not there then
  if epoch and num(state[10]) > 0 and now >= num(state[10]) then  -- all of it was over age
    trimmed, ntrimmed = last, ntrimmed + records
  elseif epoch and records == 0 and last == '0-0' then  -- nothing was ever lost
  else
    epoch, last, trimmed, purged, total, ntrimmed = new_epoch, '0-0', '0-0', '0-0', 0, 0
  end
  bytes, tokens, records = 0, 0, 0
elseif known_epoch == epoch and known ~= '' and above(known, trimmed) and above(known, purged) then
  if #redis.call('XRANGE', log, known, known) == 0 then epoch = new_epoch end
end

local at = 7
while at <= #ARGV do
  total, records = total + num(ARGV[at + 2]), records + num(ARGV[at + 2])
  bytes, tokens = bytes + #ARGV[at], tokens + num(ARGV[at + 1])
  local id = '*'
  if not there and split(last) >= now then id = after(last) end  -- its clock was set back
  last = redis.call('XADD', log, id, 'd', ARGV[at], 'n', ARGV[at + 1], 'r', ARGV[at + 2],
                    'c', int(total))
  there = true
  at = at + 3
end

if mark_all ~= '' then
  purged = last
  if mark_all == 'all' then
    redis.call('XTRIM', log, 'MINID', last)
    redis.call('DEL', marks)
    bytes, tokens, records = #ARGV[7], num(ARGV[8]), num(ARGV[9])
  end
  redis.call('HSET', marks, last, ARGV[7])
end

local left = 8 * (#ARGV - 6) / 3 + 16
local cut = max_age > 0 and now - max_age or -1
local before = trimmed
local function trim()
  while left > 0 do
    local from = above(trimmed, '0-0') and after(trimmed) or '-'
    local found = redis.call('XRANGE', log, from, '+', 'COUNT', 4)
    if #found == 0 then return end
    for _, entry in ipairs(found) do
      local id = entry[1]
      local over = max_bytes > 0 and bytes > max_bytes or split(id) < cut
      if id == last or not over then return end
      local b, n, r = sizes(entry[2])
      bytes, tokens, records = bytes - b, tokens - n, records - r
      trimmed, ntrimmed, left = id, ntrimmed + r, left - 1
    end
  end
end
if max_bytes > 0 or cut >= 0 then trim() end
if trimmed ~= before then redis.call('XTRIM', log, 'MINID', after(trimmed)) end

local deadline = 0
if max_age > 0 then
  deadline = now + max_age
  redis.call('PEXPIREAT', log, int(deadline))
else
  redis.call('PERSIST', log)
end
redis.call('HSET', meta, 'epoch', epoch, 'last', last, 'bytes', int(bytes), 'tokens', int(tokens),
           'records', int(records), 'total', int(total), 'trimmed', trimmed, 'ntrimmed',
           int(ntrimmed), 'purged', purged, 'deadline', int(deadline))
return {epoch, last}
"""
)
"""ARGV: a new epoch; epoch and id of the last entry the writer knows; bytes and milliseconds
allowed (0: any); ``all`` or ``some`` if the first frame is a purge mark that reaches everything or
only what is older; then frame, tokens, records, again and again. Returns epoch and last id."""

REWRITE = (
    _COMMON
    + """
local scratch = KEYS[4]
if redis.call('HGET', meta, 'epoch') ~= ARGV[1] then return 0 end
local trimmed = redis.call('HGET', meta, 'trimmed') or '0-0'
local bytes, tokens, records = 0, 0, 0
local changes, copying, any = {}, false, false
for at = 2, #ARGV, 4 do
  local found = redis.call('XRANGE', log, ARGV[at], ARGV[at])
  if #found == 1 then
    local b, n, r = sizes(found[1][2])
    bytes, tokens = bytes - b + #ARGV[at + 1], tokens - n + num(ARGV[at + 2])
    records, any = records - r + num(ARGV[at + 3]), true
    changes[ARGV[at]] = at
    if ARGV[at + 1] ~= '' then copying = true end
  end
end
if not any then return 1 end
if not copying then
  for id, _ in pairs(changes) do redis.call('XDEL', log, id) end
else  -- an entry cannot be changed in place: write the stream anew, with the same ids
  redis.call('DEL', scratch)
  local from = '-'
  while true do
    local found = redis.call('XRANGE', log, from, '+', 'COUNT', 64)
    for _, entry in ipairs(found) do
      local id, fields = entry[1], entry[2]
      local at = changes[id]
      if not at then
        redis.call('XADD', scratch, id, unpack(fields))
      elseif ARGV[at + 1] ~= '' then
        local upto = '0'
        for i = 1, #fields, 2 do if fields[i] == 'c' then upto = fields[i + 1] end end
        redis.call('XADD', scratch, id, 'd', ARGV[at + 1], 'n', ARGV[at + 2],
                   'r', ARGV[at + 3], 'c', upto)
      end
      from = after(id)
    end
    if #found < 64 then break end
  end
  local alive = redis.call('PTTL', log)
  redis.call('XSETID', scratch, redis.call('HGET', meta, 'last'))
  redis.call('RENAME', scratch, log)
  if alive > 0 then redis.call('PEXPIRE', log, alive) end
end
redis.call('HINCRBY', meta, 'bytes', int(bytes))
redis.call('HINCRBY', meta, 'tokens', int(tokens))
redis.call('HINCRBY', meta, 'records', int(records))
return 1
"""
)
"""Take records out of entries. ARGV: the epoch; then id, the new frame (empty: remove the entry),
its tokens, its records, again and again. Returns 1; 0 if the epoch is another one."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of a namespace's keys."""

    log: str
    meta: str
    marks: str
    scratch: str

    @classmethod
    def of(cls, prefix: str, digest: str) -> Keys:
        """The braces keep all of them in one slot of a cluster."""
        tag = f"{prefix}:{{{digest}}}"
        return cls(f"{tag}:log", f"{tag}:meta", f"{tag}:marks", f"{tag}:rewrite")


def register_key(prefix: str) -> str:
    """The hash of all namespaces."""
    return f"{prefix}:namespaces"
