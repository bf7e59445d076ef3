-- Deletes some of what has expired. It only deletes, so that it works on a server that is full.
local now, most = argument(), argument()
local count = 0
for _, entry in ipairs(call('ZRANGEBYSCORE', prefix .. ':expiry', '-inf', now, 'LIMIT', 0, most)) do
  local kind, name = string.match(entry, '^(%a+):(.*)$')
  if kind == 'member' then
    local length, rest = string.match(name, '^(%d+):(.*)$')
    length = tonumber(length)
    call('ZREM', prefix .. ':set:' .. string.sub(rest, 1, length), string.sub(rest, length + 1))
  else
    call('DEL', prefix .. ':' .. kind .. ':' .. name)
  end
  call('ZREM', prefix .. ':expiry', entry)
  count = count + 1
end
for _, id in ipairs(call('ZRANGEBYSCORE', prefix .. ':tasks:dead', '-inf', now, 'LIMIT', 0, most)) do
  local task = call('HMGET', task_key(id), 'key', 'lane')
  remove_task(id, task[1], task[2], 'dead')
  count = count + 1
end
return count
